"""A page as headless Chromium shows it."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
PHONE, DESK = 390, 1280
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH")

# Tells what a browser made of a page, once everything has had time to load.
PROBE = """<script>
window.addEventListener("load", async () => {
  await Promise.all([...document.querySelectorAll("video")].map(v =>
    v.readyState ? 0 : new Promise(done => { v.onloadedmetadata = v.onerror = done; })));
  const broken = [...document.images].filter(i => !i.naturalWidth).length
    + [...document.querySelectorAll("video")].filter(v => !v.videoWidth).length;
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  const [red] = getComputedStyle(document.body).backgroundColor.match(/[0-9]+/);
  parent.postMessage({
    broken, wide, width: innerWidth, dark: red < 128,
    images: document.images.length, videos: document.querySelectorAll("video").length,
  }, "*");
});
</script>"""
# A window of Chromium is no narrower than 500 pixels, a frame is.
FRAME = """<title></title><script>onmessage = told => { document.title = JSON.stringify(told.data); }</script>
<iframe src="probed.html" style="width: WIDTHpx; height: 900px; border: 0"></iframe>"""


def shown(page: Path, folder: Path, width: int, *, dark: bool) -> dict[str, Any]:
    """Return what a browser tells of a page, and what it complained of."""
    (folder / "probed.html").write_text(page.read_text().replace("</body>", f"{PROBE}</body>"))
    (folder / "frame.html").write_text(FRAME.replace("WIDTH", str(width)))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    options += [f"--user-data-dir={folder / 'profile'}", "--window-size=1400,1000"]
    options += ["--force-dark-mode"] if dark else []
    command = [str(CHROMIUM), *options, "--virtual-time-budget=20000", (folder / "frame.html").as_uri()]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    title = re.search(r"<title>(.*?)</title>", told.stdout)
    assert title is not None
    complaints = [line for line in told.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(title[1]) | {"complaints": complaints}
