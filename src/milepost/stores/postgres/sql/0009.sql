-- Every record has a header.
ALTER TABLE records DROP COLUMN note;
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
