-- What runs say on their way and do not record, for readers elsewhere. It is kept for minutes, and need not survive a crash.
CREATE UNLOGGED TABLE live_events (
    run_id text NOT NULL,
    epoch bigint NOT NULL,
    number bigint NOT NULL,
    follows bigint NOT NULL,
    time double precision NOT NULL,
    node_id text NOT NULL,
    visit bigint NOT NULL,
    attempt bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (run_id, epoch, number)
);
CREATE INDEX live_events_by_time ON live_events (time);
