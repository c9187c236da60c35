-- What the suite counts. The views that `COUNTS` in oracle.py names list what is wrong.
--
-- It reads these tables, without the messages that only end the last batches:
--   sent          what is in the depot, one row for each delivery
--   versions      the versions of the output that can be read
--   published     for each version the messages of the batches that it calls closed, with the id of the batch
--   rejected      the messages that the output records as rejected
--   quiet         what was in a batch or rejected when the writer had been given time, and nothing more had been sent
--   expected, expected_rejected    published and rejected of an undisturbed run, the last version only
-- and the variable max_delay, in microseconds.

-- Each message once. It is late if even its first delivery took longer than the delay that writers allow.
CREATE VIEW messages AS
SELECT sequence, source, key, type, event_time, payload, count(*) AS deliveries, min(received_at) AS received_at,
       min(received_at) - event_time > getvariable('max_delay') AS late
FROM sent GROUP BY sequence, source, key, type, event_time, payload;

-- The batches as the last version has them.
CREATE VIEW latest AS
SELECT * FROM published WHERE version = (SELECT max(version) FROM versions);

-- Messages in a batch or on record.
CREATE VIEW accounted AS
SELECT sequence FROM latest UNION SELECT sequence FROM rejected;

-- Messages that were on time, and are in no batch and on no record.
CREATE VIEW lost AS
SELECT sequence FROM messages ANTI JOIN accounted USING (sequence) WHERE NOT late;

-- Messages that were late, and are in no batch and on no record.
CREATE VIEW dropped AS
SELECT sequence FROM messages ANTI JOIN accounted USING (sequence) WHERE late;

-- Messages that batches have more than once, or that batches and rejections have more often than they were sent.
CREATE VIEW twice AS
WITH batched AS (SELECT sequence, count(*) AS copies FROM latest GROUP BY sequence),
     recorded AS (SELECT sequence, count(*) AS copies FROM rejected GROUP BY sequence)
SELECT sequence
FROM messages LEFT JOIN batched USING (sequence) LEFT JOIN recorded USING (sequence)
WHERE batched.copies > 1 OR coalesce(batched.copies, 0) + coalesce(recorded.copies, 0) > deliveries;

-- Messages in batches that were not sent, or not with this content.
CREATE VIEW altered AS
SELECT DISTINCT latest.sequence
FROM latest LEFT JOIN messages USING (sequence)
WHERE (latest.source, latest.key, latest.type, latest.event_time, latest.payload) IS DISTINCT FROM
      (messages.source, messages.key, messages.type, messages.event_time, messages.payload);

-- Closed batches that a later version does not have, or has with other messages.
CREATE VIEW changed AS
WITH contents AS (
    SELECT batch, version, md5(string_agg(concat_ws('|', sequence, source, key, type, event_time, payload), ';'
                               ORDER BY sequence)) AS content
    FROM published GROUP BY batch, version
),
lives AS (
    SELECT batch, min(version) AS first_version, count(*) AS version_count, count(DISTINCT content) AS content_count
    FROM contents GROUP BY batch
)
SELECT batch FROM lives
WHERE content_count > 1 OR version_count < (SELECT count(*) FROM versions WHERE version >= first_version);

-- Batches, as sets of messages, and rejected messages that an undisturbed run has and this one does not, or vice versa.
CREATE VIEW different AS
WITH here AS (
    SELECT list_sort(list(sequence)) AS result, 'batch' AS kind FROM latest GROUP BY batch
    UNION ALL SELECT [sequence], 'rejected' FROM rejected
),
there AS (
    SELECT list_sort(list(sequence)) AS result, 'batch' AS kind FROM expected GROUP BY batch
    UNION ALL SELECT [sequence], 'rejected' FROM expected_rejected
)
(SELECT * FROM here EXCEPT ALL SELECT * FROM there) UNION ALL (SELECT * FROM there EXCEPT ALL SELECT * FROM here);

-- Messages that came into a batch or on record only when somebody sent something newer.
CREATE VIEW after_quiet AS
WITH last_received AS (SELECT source, max(received_at) AS received_at FROM messages GROUP BY source)
SELECT sequence, last_received.received_at < (SELECT max(received_at) FROM messages) - 20000000 AS is_of_idle_source
FROM messages
SEMI JOIN accounted USING (sequence)
ANTI JOIN quiet USING (sequence)
JOIN last_received USING (source);

-- Of these, messages of a source that fell silent while others went on.
CREATE VIEW unfinished AS
SELECT sequence FROM after_quiet WHERE is_of_idle_source;

-- The others of these: nothing at all arrived any more.
CREATE VIEW waiting AS
SELECT sequence FROM after_quiet WHERE NOT is_of_idle_source;

-- Devices with a right clock of which no message is in a batch that came later than 15 s after the first message with a
-- time hours ahead, which another device sent.
CREATE VIEW stopped AS
WITH fast AS (SELECT source, received_at FROM sent WHERE event_time - received_at > 3600000000)
SELECT source FROM messages
WHERE source NOT IN (SELECT source FROM fast)
  AND received_at > (SELECT min(received_at) FROM fast) + 15000000
GROUP BY source HAVING count(*) FILTER (sequence IN (SELECT sequence FROM latest)) = 0;
