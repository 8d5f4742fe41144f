-- Every record has a header.
ALTER TABLE records DROP COLUMN note;
-- The random id of each run's life, which its records name.
ALTER TABLE runs ADD COLUMN life text NOT NULL DEFAULT '';
-- The last beat of each worker. It is kept for a day, and need not survive a crash.
CREATE UNLOGGED TABLE workers (
    name text PRIMARY KEY,
    time double precision NOT NULL,
    body bytea NOT NULL
);
-- Schedules that are paused, which no worker starts.
CREATE TABLE paused_schedules (
    name text PRIMARY KEY,
    time double precision NOT NULL,
    body bytea NOT NULL
);
