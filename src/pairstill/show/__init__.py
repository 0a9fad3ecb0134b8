"""What people look at: `report`, one HTML file, and `serve`, a local web page.

In: folders with sets, runs, students and tables. Out: pages. Neighbours use `report.page.write_report` and
`serve.server.serve`.
"""
