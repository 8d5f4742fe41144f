-- A poll reads what it gives, whatever the planner believes of the runs that are there.

-- The order in which a worker takes what nobody owns and is due at once; NULL: it is not. A poll can have that order from one
-- index alone. That of `id` it could have from others too, and would walk by them over all runs that were taken before.
-- All of `runs` is written anew once.
ALTER TABLE runs ADD COLUMN queued bigint GENERATED ALWAYS AS (
    CASE WHEN owner = '' AND (
        (status = 'ready' AND wake_at IS NULL) OR (status = 'interrupted' AND worked)
        OR (cancel IS NOT NULL AND status NOT IN ('finished', 'cancelled'))
    ) THEN id END
) STORED;
CREATE INDEX runs_queued ON runs (flow, queued) WHERE queued IS NOT NULL;
DROP INDEX runs_ready, runs_drained, runs_cancel;

-- What is due at a time is read in the order of these times.
DROP INDEX runs_timed;
CREATE INDEX runs_timed ON runs (flow, wake_at) WHERE wake_at IS NOT NULL AND status IN ('ready', 'waiting');
