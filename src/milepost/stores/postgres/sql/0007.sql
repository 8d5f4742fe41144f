-- The proof of what people are shown of a run's row: '' without keys.
ALTER TABLE runs ADD COLUMN seal text NOT NULL DEFAULT '';
