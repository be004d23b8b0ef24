"""report.html: one file, without network or any library in the page.

frame is the document around all pages (style, script, data, Content-Security-Policy), marks are the pieces of SVG,
charts, strips, heat, wiring and timeline draw one plot each, plotted chooses among them. statuses is nodes by checks,
told the words of the verdict and the findings, whole the page of a report. A page of another command begins with frame
and plotted.
"""
