"""Text that a page, a terminal or Markdown would obey if it were let."""

SCRIPT = "<script>document.title='owned'</script>"
IMAGE = '"><img src=x onerror="document.title=\'owned\'">'
ANSI = "\x1b[31mred\x1b[0m"
BIDI = "safe\u202egnp.exe\u2066"
TABLE = "a | b `code` [link](https://evil.example) www.evil.example"
LONG = "word" * 250_000
HOSTILE = (SCRIPT, IMAGE, ANSI, BIDI, TABLE, LONG)
