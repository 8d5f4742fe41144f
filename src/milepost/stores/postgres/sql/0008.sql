-- Where the runs of a time begin and end in the order of id.
CREATE INDEX runs_by_creation ON runs (created_at, id);
