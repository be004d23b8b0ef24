"""report.html: one file, without network or any library in the page.

frame is the document around all pages (style, script, data, Content-Security-Policy); marks are the pieces of SVG;
charts, strips, heat, wiring and timeline draw one plot each; plotted chooses among them. statuses is the table of nodes
by checks; findings has the texts of the verdict and the findings; whole is the page of a report. The pages of other
commands are made from frame and plotted.
"""
