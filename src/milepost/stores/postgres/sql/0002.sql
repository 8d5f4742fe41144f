-- Pages of runs, polls and pruning read what they give, however many runs there are.

-- When a run was last changed that nobody owns. A renewal of a lease, which is of a run that somebody owns, leaves it as it is
-- (NULL), and so touches no index still. All of `runs` is written anew once.
ALTER TABLE runs ADD COLUMN rested_at double precision
    GENERATED ALWAYS AS (CASE WHEN status <> 'running' THEN updated_at END) STORED;
CREATE INDEX runs_rested ON runs (status, rested_at, run_id) WHERE rested_at IS NOT NULL;

-- What is listed is read in the order of id.
CREATE INDEX runs_by_flow ON runs (flow, id);
CREATE INDEX runs_by_status ON runs (status, id);
CREATE INDEX runs_by_flow_and_status ON runs (flow, status, id);

-- Runs by what their tags say, in the order of id, which no index of tags could give. The key is a part of a digest, for a
-- tag may be longer than a key: whoever looks for one compares the run's tags too.
CREATE TABLE run_tags (
    tag bytea NOT NULL,
    run bigint NOT NULL,
    PRIMARY KEY (tag, run)
);
-- What a damaged database has in the place of tags is no tag.
CREATE FUNCTION note_tags() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        DELETE FROM run_tags WHERE run = OLD.id AND tag IN (
            SELECT substring(sha256(convert_to(key || '=' || value, 'UTF8')) FOR 8) FROM jsonb_each_text(
                CASE WHEN jsonb_typeof(OLD.tags) = 'object' THEN OLD.tags ELSE '{}' END
            )
        );
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO run_tags
        SELECT substring(sha256(convert_to(key || '=' || value, 'UTF8')) FOR 8), NEW.id FROM jsonb_each_text(
            CASE WHEN jsonb_typeof(NEW.tags) = 'object' THEN NEW.tags ELSE '{}' END
        )
        WHERE value IS NOT NULL ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER run_tags_begin AFTER INSERT ON runs FOR EACH ROW WHEN (NEW.tags <> '{}') EXECUTE FUNCTION note_tags();
CREATE TRIGGER run_tags_change AFTER UPDATE OF tags ON runs FOR EACH ROW WHEN (OLD.tags <> NEW.tags)
    EXECUTE FUNCTION note_tags();
CREATE TRIGGER run_tags_end AFTER DELETE ON runs FOR EACH ROW WHEN (OLD.tags <> '{}') EXECUTE FUNCTION note_tags();
INSERT INTO run_tags
SELECT substring(sha256(convert_to(key || '=' || value, 'UTF8')) FOR 8), runs.id FROM runs, jsonb_each_text(tags)
WHERE value IS NOT NULL ON CONFLICT DO NOTHING;

-- What is due has indexes of its own, which are as small as what waits.
DROP INDEX runs_due;
CREATE INDEX runs_ready ON runs (flow, id) WHERE status = 'ready' AND wake_at IS NULL;
CREATE INDEX runs_timed ON runs (flow, status, wake_at) WHERE wake_at IS NOT NULL;
