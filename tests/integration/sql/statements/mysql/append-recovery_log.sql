SET TRANSACTION ISOLATION LEVEL REPEATABLE READ
START TRANSACTION WITH CONSISTENT SNAPSHOT
SELECT number FROM `recovery_entries` WHERE log = %s ORDER BY number
CREATE TABLE IF NOT EXISTS `recovery_entries` (log VARCHAR(401) NOT NULL, number BIGINT NOT NULL, server VARCHAR(300) NOT NULL, writer CHAR(32) NOT NULL, pieces INT NOT NULL, data LONGBLOB NOT NULL, PRIMARY KEY (log, number)) ENGINE = InnoDB CHARACTER SET ascii COLLATE ascii_bin
CREATE TABLE IF NOT EXISTS `recovery_blobs` (log VARCHAR(401) NOT NULL, name VARCHAR(255) NOT NULL, piece INT NOT NULL, generation BIGINT, data LONGBLOB NOT NULL, PRIMARY KEY (log, name, piece)) ENGINE = InnoDB CHARACTER SET ascii COLLATE ascii_bin
SELECT database()
SELECT number, server FROM `recovery_entries` WHERE log = %s AND number <> %s ORDER BY number DESC LIMIT 1
INSERT INTO `recovery_entries` (log, number, server, writer, pieces, data) VALUES (%s, %s, %s, %s, %s, %s)
SELECT DISTINCT name FROM `recovery_blobs` WHERE log = %s AND generation < %s
SELECT server FROM `recovery_entries` WHERE log = %s AND number = %s FOR UPDATE
SELECT number, pieces, data FROM `recovery_entries` WHERE log = %s AND number BETWEEN %s AND %s
DELETE FROM `recovery_entries` WHERE log = %s AND number IN (%s, %s, %s)
DELETE FROM `recovery_blobs` WHERE log = %s AND name IN (%s, %s, %s)
