"""The stores of journals: one package or module for each backend. `url.open_store` opens a store by its URL."""
