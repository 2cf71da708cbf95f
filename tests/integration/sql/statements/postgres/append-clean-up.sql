DELETE FROM "outfall"."ledger" WHERE incarnation = %(incarnation)s AND (target = %(target0)s AND step = %(step0)s OR target = %(target1)s AND step = %(step1)s)
