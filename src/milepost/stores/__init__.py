"""Where journals live: one module per medium. `opening.open_store` makes a store from its URL."""
