DELETE FROM `db`.`t`
