-- Who sent a signal, as its sender said; NULL if nobody said.
ALTER TABLE signals ADD COLUMN sent_by text;
