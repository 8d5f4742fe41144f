-- Records name the deleted ones before them, so nobody counts these.
ALTER TABLE runs DROP COLUMN pruned;
