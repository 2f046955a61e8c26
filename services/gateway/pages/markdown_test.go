package pages

import (
	"errors"
	"strings"
	"testing"

	"tendril.dev/test/fixture"
)

// TestRender: a stranger's text can do no harm, shows no image from elsewhere, and its links lead
// to places in the repository.
func TestRender(t *testing.T) {
	t.Parallel()
	l := links{folder: "docs", page: func(place string) string { return "/PAGE?path=" + place }, raw: func(place string) string { return "/RAW?path=" + place }}
	for _, row := range fixture.Rows(`
		# Hello                                  | <h1 id="hello">Hello</h1>
		[a](b.md#top)                            | <a href="/PAGE?path=docs/b.md#top" rel="nofollow noreferrer">a</a>
		[a](../LICENSE)                          | <a href="/PAGE?path=LICENSE" rel="nofollow noreferrer">a</a>
		[a](/x/y)                                | <a href="/PAGE?path=x/y" rel="nofollow noreferrer">a</a>
		[a](../../../../etc)                     | <a href="/PAGE?path=etc" rel="nofollow noreferrer">a</a>
		[a](#top)                                | <a href="#top" rel="nofollow noreferrer">a</a>
		[a](https://b.example/c)                 | <a href="https://b.example/c" rel="nofollow noreferrer">a</a>
		[a](javascript:alert(1))                 | <p>a</p>
		![i](i.png)                              | <img src="/RAW?path=docs/i.png" alt="i">
		![i](https://spy.example/i.png)          | alt="i"
		<img src="/logo.svg" onerror="x()">      | <img src="/RAW?path=logo.svg">
		<script>alert(1)</script>x               | x
		<p style="position:fixed">x</p>          | <p>x</p>
		<iframe src="https://b.example"></iframe>|
		*a* and ~~b~~                            | <em>a</em> and <del>b</del>`) {
		got, err := render([]byte(row[0]), l)
		if err != nil || !strings.Contains(string(got), row[1]) {
			t.Errorf("%s:\n%s\nwant %s (%v)", row[0], got, row[1], err)
		}
		for _, bad := range []string{"<script", "onerror", "style=", "spy.example", "<iframe", "javascript:"} {
			if strings.Contains(string(got), bad) {
				t.Errorf("%s: %s is left: %s", row[0], bad, got)
			}
		}
	}
}

// TestCostlyTextsAreNotRendered: of the size that is rendered, each of them took minutes or gigabytes.
// What people write is rendered.
func TestCostlyTextsAreNotRendered(t *testing.T) {
	t.Parallel()
	fill := func(part string) string { return strings.Repeat(part, maxMarkdown/len(part)) }
	row := strings.Repeat("a|", maxMarkdown/8)
	for _, text := range []string{
		row + "\n" + strings.Repeat("-|", maxMarkdown/8) + "\n" + strings.Repeat("|\n", maxMarkdown/8),
		fill(">"), fill("> "), fill("- "), fill("1. "), fill("* > "), strings.Repeat("- ", maxMarkdown/4) + fill("a\n")[:maxMarkdown/2],
		fill("["), fill("[a]("), fill("![a]("), fill("[a](<b"), strings.Repeat("[", maxMarkdown/2) + strings.Repeat("]", maxMarkdown/2), fill("a*"), fill("_a __a "),
	} {
		if _, err := render([]byte(text), links{}); !errors.Is(err, errCostly) {
			t.Errorf("%.20q… is rendered: %v", text, err)
		}
	}
	same := func(place string) string { return place }
	for _, text := range []string{
		fill("## A title\n\nSome *text* with `code` and [a link](b.md).\n\n- one\n- two\n\n"),
		fill(strings.Repeat("- [a](https://b.example/c): *some* words\n", 100) + "\n"),
		"|a|b|c|d|e|\n|-|-|-|-|-|\n" + strings.Repeat("|1|2|3|4|5|\n", 1000), strings.Repeat("> ", 5) + "deep", strings.Repeat("* ", 40) + "\n",
	} {
		if got, err := render([]byte(text), links{page: same, raw: same}); err != nil || len(got) == 0 {
			t.Errorf("%.20q… is not rendered: %v", text, err)
		}
	}
}

// TestRenderings: a text is rendered once for each place that its links lead to, and a changed text
// again.
func TestRenderings(t *testing.T) {
	t.Parallel()
	rendered := 0
	kept := newRenderings()
	at := func(text, home string) string {
		html, err := kept.render([]byte(text), renderedAt{home: home}, links{
			page: func(place string) string { rendered++; return home + place },
			raw:  func(place string) string { return place },
		})
		fixture.Must(t, err)
		return string(html)
	}
	for range 2 {
		if one, other := at("[a](b)", "/one/"), at("[a](b)", "/other/"); !strings.Contains(one, `"/one/b"`) || !strings.Contains(other, `"/other/b"`) {
			t.Errorf("%s, %s", one, other)
		}
	}
	at("[a](b) changed", "/one/")
	if rendered != 3 {
		t.Errorf("rendered %d times", rendered)
	}
}

func TestTextThatLooksLikeAnother(t *testing.T) {
	t.Parallel()
	if got := harmless("a\u202eb\u2066c"); got != "abc" {
		t.Errorf("a name: %q", got)
	}
	if got := visible("if a\u202e { }"); got != "if a<U+202E> { }" {
		t.Errorf("code: %q", got)
	}
}

// BenchmarkRender renders a text of the largest size that is rendered.
func BenchmarkRender(b *testing.B) {
	text := []byte(strings.Repeat("## A title\n\nSome *text* with `code` and [a link](b.md).\n\n- one\n- two\n\n", maxMarkdown/75))
	l := links{page: func(place string) string { return place }, raw: func(place string) string { return place }}
	for b.Loop() {
		if _, err := render(text, l); err != nil {
			b.Fatal(err)
		}
	}
}
