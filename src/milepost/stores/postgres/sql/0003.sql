-- A poll reads what it gives, whatever the planner believes of the runs that are there.

-- What nobody owns and is due at once, in the order in which workers take it. NULLS FIRST makes that an order which no other
-- index has: by the primary key a poll would walk over all runs that were taken before.
CREATE INDEX runs_queued ON runs (flow, id NULLS FIRST) WHERE owner = '' AND (
    (status = 'ready' AND wake_at IS NULL) OR (status = 'interrupted' AND worked)
    OR (cancel IS NOT NULL AND status NOT IN ('finished', 'cancelled'))
);
DROP INDEX runs_ready, runs_drained, runs_cancel;

-- What is due at a time is read in the order of these times.
DROP INDEX runs_timed;
CREATE INDEX runs_timed ON runs (flow, wake_at) WHERE wake_at IS NOT NULL AND status IN ('ready', 'waiting');
