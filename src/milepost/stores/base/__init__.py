"""The parts that all stores share: the fence, the verbs, and the layer between the verbs and a backend."""
