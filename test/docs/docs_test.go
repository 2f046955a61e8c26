// Package docs checks what the pages of this repository refer to.
package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"tendril.dev/test/fixture"
)

const root = "../.."

// read returns the text of every page of the repository, by its path.
func read(t *testing.T) map[string]string {
	t.Helper()
	pages := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/decisions/*.md", "deploy/k8s/*.md"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		fixture.Must(t, err)
		for _, path := range paths {
			text, err := os.ReadFile(path)
			fixture.Must(t, err)
			pages[filepath.Clean(path)] = string(text)
		}
	}
	if len(pages) < 10 {
		t.Fatalf("only %d pages found", len(pages))
	}
	return pages
}

var (
	fence = regexp.MustCompile("(?ms)^```.*?^```")
	link  = regexp.MustCompile(`\]\(([^)\s]+)\)`)
)

// anchors returns the anchors of the headings of a page, as GitHub makes them.
func anchors(page string) []string {
	var all []string
	for line := range strings.Lines(fence.ReplaceAllString(page, "")) {
		if !strings.HasPrefix(line, "#") {
			continue
		}
		title := strings.ToLower(strings.TrimSpace(strings.TrimLeft(line, "#")))
		all = append(all, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return r
			}
			return -1
		}, title))
	}
	return all
}

func TestEveryLinkLeadsSomewhere(t *testing.T) {
	t.Parallel()
	pages := read(t)
	for path, page := range pages {
		for _, match := range link.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
			target, anchor, _ := strings.Cut(match[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			to := path
			if target != "" {
				to = filepath.Join(filepath.Dir(path), target)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s links to %s: there is no such file", path, match[1])
				continue
			}
			if anchor != "" && !slices.Contains(anchors(pages[to]), anchor) {
				t.Errorf("%s links to %s: there is no such heading", path, match[1])
			}
		}
	}
}

// others are settings of another GRASP server, or examples of names that are no settings.
var others = []string{
	"NGIT_ARCHIVE_", "NGIT_DOMIAN", "NGIT_ENV_FILE", "NGIT_HOLDING_", "NGIT_PRIVATE_",
	"NGIT_SYNC_ALLOW_NON_GLOBAL_TARGETS", "NGIT_SYNC_PLUS_", "NGIT_X_Y",
}

// TestEverySettingExists: a page names settings that there are. .env.example has all of them.
func TestEverySettingExists(t *testing.T) {
	t.Parallel()
	name := regexp.MustCompile(`NGIT_[A-Z0-9_]+`)
	example, err := os.ReadFile(filepath.Join(root, ".env.example"))
	fixture.Must(t, err)
	settings := append(name.FindAllString(string(example), -1), others...)
	for path, page := range read(t) {
		for _, setting := range name.FindAllString(page, -1) {
			if !slices.Contains(settings, setting) {
				t.Errorf("%s names %s, which is no setting", path, setting)
			}
		}
	}
}

// TestEveryTestExists: a page names tests that there are.
func TestEveryTestExists(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		all.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for path, page := range read(t) {
		for _, name := range regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(page, -1) {
			if !strings.Contains(all.String(), "func "+name+"(") {
				t.Errorf("%s names %s, which is no test", path, name)
			}
		}
	}
}

// TestEveryAlertHasARunbook: the annotation of each alert leads to a section that has its name.
func TestEveryAlertHasARunbook(t *testing.T) {
	t.Parallel()
	rules, err := os.ReadFile(filepath.Join(root, "deploy/prometheus/rules.yaml"))
	fixture.Must(t, err)
	pages := read(t)
	alerts := regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(string(rules), -1)
	links := regexp.MustCompile(`runbook_url: (\S+)#(\w+)`).FindAllStringSubmatch(string(rules), -1)
	if len(alerts) < 10 || len(alerts) != len(links) {
		t.Fatalf("%d alerts, %d links", len(alerts), len(links))
	}
	for i, alert := range alerts {
		page, anchor := links[i][1], links[i][2]
		if anchor != strings.ToLower(alert[1]) || !slices.Contains(anchors(pages[filepath.Join(root, page)]), anchor) {
			t.Errorf("%s: %s has no section %s", alert[1], page, anchor)
		}
	}
}
