"""Delivery of epochs into the tables that their rows name, in one transaction.

```
delivery  the base of a sink of many tables: checks those that options name, and others when rows first name them
tables    the tables of a step, and which of them the rows of an epoch go to
writer    one attempt: loads its rows into staging in one transaction
routing   which table a row goes to
listed    what options say of single tables: whether rows may name them, their keys, the columns they get
```
"""
