DELETE FROM `db`.`ledger` WHERE incarnation = %(incarnation)s AND (target = %(target)s OR @@lower_case_table_names <> 0 AND LOWER(target) = LOWER(%(target)s)) AND step = %(step)s
