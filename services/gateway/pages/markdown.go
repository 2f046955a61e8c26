package pages

import (
	"bytes"
	"fmt"
	"html/template"
	"net/url"
	"path"
	"regexp"
	"strings"

	"github.com/microcosm-cc/bluemonday"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/text"
)

// maxMarkdown is the largest text that is rendered, in bytes. A larger one is shown as it is.
const maxMarkdown = 128 << 10

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

// render renders a Markdown text of a stranger. What is left is harmless: no script, no style, and
// no image but those of the repository itself. (Another's image would tell that other who reads.)
func render(source []byte, l links) (template.HTML, error) {
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
