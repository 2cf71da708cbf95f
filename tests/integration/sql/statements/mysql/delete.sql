LOAD DATA LOCAL INFILE 'outfall' INTO TABLE `db`.`staging_t_sink_0123456789ab` CHARACTER SET utf8mb4 FIELDS TERMINATED BY '\t' ESCAPED BY '\\' LINES TERMINATED BY '\n' (`_outfall_stage`, `_outfall_row`, `id`)
EXPLAIN DELETE FROM `db`.`t` WHERE false
DELETE target FROM `db`.`t` AS target JOIN `db`.`staging_t_sink_0123456789ab` AS removed ON target.`id` = removed.`id` WHERE `_outfall_stage` IN (1234567890)
SELECT `_outfall_stage`, count(*) FROM `db`.`staging_t_sink_0123456789ab` WHERE `_outfall_stage` IN (1234567890) GROUP BY 1
