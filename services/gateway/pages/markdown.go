package pages

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"html/template"
	"net/url"
	"path"
	"regexp"
	"strings"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/microcosm-cc/bluemonday"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/text"
)

const (
	// maxMarkdown is the largest text that is rendered, in bytes. A larger one is shown as it is.
	maxMarkdown = 128 << 10
	// What a text of a stranger may have to be rendered: with more, the time or the memory that it takes
	// grows with the square of its size.
	maxDepth = 64      // quotes and lists that one line begins
	maxCells = 50_000  // of tables: a row of one character is filled up to all columns of its table
	maxPairs = 1 << 20 // of brackets in a paragraph, for each of which a partner is looked for
)

// errCostly is a text that would take too much to be rendered.
var errCostly = errors.New("it has too many quotes, lists, cells or brackets within each other")

// costly reports whether a text would take too much to be rendered. It counts at least what is there.
func costly(source []byte) bool {
	lines, columns, brackets, marks := 0, 0, 0, 0 // of the paragraph
	cells, pairs := 0, 0
	end := func() {
		cells += lines * columns
		pairs += brackets*brackets + marks*marks/16
		lines, columns, brackets, marks = 0, 0, 0, 0
	}
	for line := range bytes.Lines(source) {
		if depth(line) > maxDepth {
			return true
		}
		if len(bytes.TrimSpace(line)) == 0 {
			end()
			continue
		}
		lines, columns = lines+1, max(columns, 1+bytes.Count(line, []byte("|")))
		brackets += bytes.Count(line, []byte("["))
		for _, mark := range []string{"*", "_", "~", "`"} {
			marks += bytes.Count(line, []byte(mark))
		}
	}
	end()
	return cells > maxCells || pairs > maxPairs
}

// depth is how many quotes and lists a line begins or goes on.
func depth(line []byte) (n int) {
	for i, c := range line {
		switch {
		case c == '>', (c == ' ' || c == '\t') && i > 0 && bytes.IndexByte([]byte("-+*.)"), line[i-1]) >= 0:
			n++
		case bytes.IndexByte([]byte(" \t-+*.)0123456789"), c) < 0:
			return n
		}
	}
	return n
}

// isMarkdown reports whether a file is rendered, by its name.
func isMarkdown(name string) bool {
	switch strings.ToLower(path.Ext(name)) {
	case ".md", ".markdown":
		return true
	}
	return false
}

// links resolves what a text in a repository names.
type links struct {
	folder string                    // of the text, "" for the root
	page   func(place string) string // of a folder or file
	raw    func(place string) string // of a file, as it is
}

// keptRenderings is how many rendered texts are kept, and maxKept the size of the largest one, in
// bytes: to render a large text takes a hundred times as long as all else of its page.
const keptRenderings, maxKept = 64, 512 << 10

// renderedAt is a text, by its hash, and where its links begin.
type renderedAt struct {
	text   [sha256.Size]byte
	home   string
	folder string
	commit string // whose images it shows
	revision
}

// renderings keeps the texts that were rendered last.
type renderings struct {
	*lru.Cache[renderedAt, template.HTML]
}

func newRenderings() *renderings {
	kept, err := lru.New[renderedAt, template.HTML](keptRenderings)
	if err != nil {
		panic(err) // the number is a positive constant
	}
	return &renderings{kept}
}

// render renders a text, unless it is kept.
func (k *renderings) render(source []byte, at renderedAt, l links) (template.HTML, error) {
	at.text = sha256.Sum256(source)
	if rendered, kept := k.Get(at); kept {
		return rendered, nil
	}
	rendered, err := render(source, l)
	if err == nil && len(rendered) <= maxKept {
		k.Add(at, rendered)
	}
	return rendered, err
}

// render renders a Markdown text of a stranger. What is left is harmless: no script, no style, and
// no image but those of the repository itself. (Another's image would tell that other who reads.)
func render(source []byte, l links) (template.HTML, error) {
	if costly(source) {
		return "", errCostly
	}
	markdown := goldmark.New(goldmark.WithExtensions(extension.GFM),
		goldmark.WithParserOptions(parser.WithAutoHeadingID()),
		goldmark.WithRendererOptions(html.WithUnsafe())) // the policy below decides
	root := markdown.Parser().Parse(text.NewReader(source))
	err := ast.Walk(root, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if link, is := n.(*ast.Link); is && entering {
			link.Destination = []byte(l.link(string(link.Destination)))
		}
		return ast.WalkContinue, nil
	})
	var out bytes.Buffer
	if err == nil {
		err = markdown.Renderer().Render(&out, source, root)
	}
	if err != nil {
		return "", fmt.Errorf("render Markdown: %w", err)
	}
	return template.HTML(l.policy().SanitizeBytes(out.Bytes())), nil
}

// language is the class that goldmark gives to code.
var language = regexp.MustCompile(`^language-[a-zA-Z0-9]+$`)

// policy is what may be in the text of a stranger.
func (l links) policy() *bluemonday.Policy {
	p := bluemonday.UGCPolicy()
	p.RequireNoReferrerOnLinks(true)
	p.AllowAttrs("class").Matching(language).OnElements("code")
	p.AllowAttrs("type", "checked", "disabled").OnElements("input") // task lists
	p.RewriteSrc(func(u *url.URL) {
		place, inside := l.place(u)
		if *u = (url.URL{}); !inside {
			return
		}
		if ours, err := url.Parse(l.raw(place)); err == nil {
			*u = *ours
		}
	})
	return p
}

// link is where a link of the text leads.
func (l links) link(destination string) string {
	u, err := url.Parse(destination)
	if err != nil {
		return destination
	}
	place, inside := l.place(u)
	if !inside || u.Path == "" {
		return destination
	}
	to := l.page(place)
	if u.Fragment != "" {
		to += "#" + u.EscapedFragment()
	}
	return to
}

// place is the path in the repository that a URL of the text names. inside: it names one.
func (l links) place(u *url.URL) (place string, inside bool) {
	if u.Scheme != "" || u.Host != "" || u.Opaque != "" {
		return "", false
	}
	place = path.Join("/", l.folder, u.Path)
	if strings.HasPrefix(u.Path, "/") {
		place = path.Clean(u.Path)
	}
	return strings.TrimPrefix(place, "/"), true
}
