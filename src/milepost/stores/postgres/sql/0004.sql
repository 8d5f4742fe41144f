-- Why a blocked run is blocked: '' for every other one.
ALTER TABLE runs ADD COLUMN blocked_by text NOT NULL DEFAULT '';
