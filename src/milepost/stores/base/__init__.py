"""What all stores share: the fence, the verbs, and what stands between the verbs and a backend."""
