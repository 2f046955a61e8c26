package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// TestPagesInABrowser looks at the pages of a real repository as visitors do: on a telephone and on
// a desk, in the dark, without scripts. Nothing lies beyond the window's edge, and nothing is
// refused by the pages' own policy. With TENDRIL_PICTURES it leaves pictures of them in that folder.
func TestPagesInABrowser(t *testing.T) {
	t.Parallel()
	browser := world.NewBrowser(t)
	p := world.Start(t, nil)
	ann, bob := fixture.NewPerson(), fixture.NewPerson()
	work := world.NewWorkTree(t)
	write := func(name, content string) {
		t.Helper()
		path := filepath.Join(work.Dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644))
	}
	write("README.md", "# Seedling\n\nA small program that *grows*.\n\n```\ngo install example.com/seedling@latest\n```\n\n"+
		"<script>document.title = 'taken over'</script>\n")
	write("main.go", "package main\n\nfunc main() { println(\"grows\", "+strings.Repeat("\"a long line\", ", 20)+"1) }\n")
	write("docs/soil.md", "# Soil\n")
	work.Commit("Plant it")
	work.Git("tag", "v0.1.0")
	write("docs/water.md", "# Water\n")
	work.Commit("Water it twice a day, because the first reports say that once is not enough")
	work.Git("tag", "v0.2.0")
	identifier := "seedling"
	now := nostr.Now()
	p.Holds(ann.At(now-3).Announce(identifier), ann.At(now-2).State(identifier, work.Refs()))
	url := p.URL + "/" + ann.Npub + "/" + identifier + ".git"
	work.Git("push", "-q", url, "main", "v0.1.0", "v0.2.0")
	issue := bob.At(now-1).Sign(nostr.KindIssue, "It withers.", nostr.Tag{"subject", "Leaves turn yellow"}, ann.Repo(identifier))
	p.Accepts(issue, ann.At(now-1).Sign(nostr.KindIssue, "", nostr.Tag{"subject", "Say how much light it needs"}, ann.Repo(identifier)))

	pages := map[string]string{
		"home": p.URL + "/", "repository": url, "file": url + "?branch=main&path=main.go", "folder": url + "?branch=main&path=docs",
		"commits": url + "?branch=main&log=0", "issues": url + "?issues", "author": p.URL + "/" + ann.Npub, "missing": p.URL + "/nothing",
	}
	for name, address := range pages {
		for _, width := range []int{360, 1000} {
			for _, dark := range []bool{false, true} {
				browser.Look(width, dark, true)
				browser.Open(address)
				if wide := browser.Ask("document.documentElement.scrollWidth"); wide != fmt.Sprint(width) {
					t.Errorf("%s at %d px is %s px wide", name, width, wide)
				}
				picture(t, browser, fmt.Sprintf("%s-%d-%v.png", name, width, dark))
				if title := browser.Ask("document.title"); title == "taken over" || title == "" {
					t.Errorf("%s has the title %q", name, title)
				}
			}
		}
	}
	browser.Open(url)
	browser.Ask(`document.querySelector("button.copy").click()`)
	browser.Until("the button says that the command is copied", `document.querySelector("button.copy").textContent == "Copied"`)
	for _, complaint := range browser.Complaints() {
		if !strings.Contains(complaint, "404") {
			t.Errorf("the browser complains: %s", complaint)
		}
	}
	browser.Look(360, false, false)
	browser.Open(url)
	if text := browser.Ask("document.body.innerText"); !strings.Contains(text, "git clone ") || !strings.Contains(text, "/seedling.git") || strings.Contains(text, "Copy") {
		t.Errorf("without scripts the page says: %s", text)
	}
}

// picture keeps a picture where the caller asked for it.
func picture(t *testing.T, browser *world.Browser, name string) {
	t.Helper()
	if folder := os.Getenv("TENDRIL_PICTURES"); folder != "" {
		must(t, os.MkdirAll(folder, 0o755), os.WriteFile(filepath.Join(folder, name), browser.Picture(), 0o644))
	}
}
