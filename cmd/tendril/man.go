package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/alecthomas/kong"

	"tendril.dev/lib/obs"
)

// manCommand is `tendril man`, by which packages make their man page.
type manCommand struct{}

// Run implements the command.
func (manCommand) Run(ctx *kong.Context) error { return writeMan(os.Stdout, ctx.Model) }

// writeMan writes the man page of a program from the declaration of its commands and settings, in
// man(7). It says nothing of when it was made, so that the same version has the same page.
func writeMan(to io.Writer, app *kong.Application) error {
	m := &manPage{settings: map[string]bool{}}
	m.line(`.TH %s 1 "" "%s %s" ""`, strings.ToUpper(app.Name), app.Name, obs.Version())
	m.line(".SH NAME\n%s \\- %s", app.Name, roff(app.Help))
	m.line(".SH SYNOPSIS\n.B %s\n.I COMMAND\n[\\fIARGUMENT\\fR...] [\\fIFLAG\\fR...]", app.Name)
	m.line(".SH COMMANDS")
	m.commands(app.Node)
	m.line(".SH SETTINGS\nFlags over the environment over the file\n.I .env\n(NGIT_ENV_FILE) over defaults.")
	m.out.WriteString(m.all.String())
	m.line(".SH EXIT STATUS\n0, 1 for a failure, 2 for wrong usage.")
	_, err := io.WriteString(to, m.out.String())
	return err
}

type manPage struct {
	out, all strings.Builder
	settings map[string]bool // that are in all, by name
}

func (m *manPage) line(format string, args ...any) { fmt.Fprintf(&m.out, format+"\n", args...) }

// commands writes a section for each command that does something by itself. Flags that are
// settings are gathered: several commands have the same.
func (m *manPage) commands(node *kong.Node) {
	for _, child := range node.Children {
		if child.Hidden {
			continue
		}
		if len(child.Children) == 0 {
			m.line(".SS \"%s\"\n%s", roff(strings.TrimSpace(child.Summary())), roff(child.Help))
			for _, argument := range child.Positional {
				m.line(".TP\n.I %s\n%s", roff(argument.Summary()), roff(argument.Help))
			}
			for _, flag := range child.Flags {
				m.flag(flag)
			}
		}
		m.commands(child)
	}
}

func (m *manPage) flag(flag *kong.Flag) {
	name := "--" + flag.Name
	if flag.Short != 0 {
		name = "-" + string(flag.Short) + ", " + name
	}
	if !flag.IsBool() {
		name += "=" + cmp.Or(flag.PlaceHolder, strings.ToUpper(flag.Name))
	}
	setting := flag.Tag.Get("env")
	if setting == "" {
		m.line(".TP\n.B %s\n%s", roff(name), roff(flag.Help))
		return
	}
	if !m.settings[setting] {
		m.settings[setting] = true
		about := roff(flag.Help)
		if flag.Default != "" {
			about += " Default: " + roff(flag.Default) + "."
		}
		fmt.Fprintf(&m.all, ".TP\n.B %s\n(%s) %s\n", setting, roff("--"+flag.Name), about)
	}
}

// roff writes a text so that troff prints it as it is.
func roff(text string) string {
	text = strings.NewReplacer("\\", "\\e", "-", "\\-", "\n", " ").Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = "\\&" + text
	}
	return text
}
