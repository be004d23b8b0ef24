"""What is known about failures: signatures/*.toml are causes and the lines that show them; book reads and matches them;
xids reads xid.tsv, what each error of a GPU or an NVSwitch means; line is a line of a log; signals says what a signal
means."""
