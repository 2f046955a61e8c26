package config

import (
	"fmt"
	"iter"
	"reflect"
	"strings"

	"github.com/alecthomas/kong"
)

// groups are the topics of the settings, by the key that their declaration names.
var groups = []kong.Group{
	{Key: "Service", Title: "Service", Description: "Who we are and where we listen."},
	{Key: "Storage", Title: "Storage", Description: "Where data lies."},
	{Key: "Bus", Title: "Bus", Description: "NATS JetStream: embedded, or a server that several processes share."},
	{Key: "Policy", Title: "Policy", Description: "What is accepted, and how much of it."},
	{Key: "Sync", Title: "Sync", Description: "How other relays are followed."},
	{Key: "Git data", Title: "Git data", Description: "How git data is kept, hunted and served."},
	{Key: "Front door", Title: "Front door", Description: "How clients are treated."},
	{Key: "Observation", Title: "Observation", Description: "Logs, metrics, health, shutdown."},
}

// field is one declared setting or constant.
type field struct {
	reflect.StructField
	group string
	value reflect.Value
}

// name is the setting's NGIT_X.
func (f field) name() string { return f.Tag.Get("env") }

// fixed reports whether it is a constant.
func (f field) fixed() bool {
	_, constant := f.Tag.Lookup("constant")
	return constant
}

// fields returns every declared setting and constant with its value, in the order of declaration.
func (s *Settings) fields() iter.Seq[field] {
	return func(yield func(field) bool) {
		for topic, group := range reflect.ValueOf(s).Elem().Fields() {
			if !topic.Anonymous {
				continue
			}
			for f, value := range group.Fields() {
				if !yield(field{f, topic.Tag.Get("group"), value}) {
					return
				}
			}
		}
	}
}

// settings returns the declared settings of a group.
func settings(group string) iter.Seq[field] {
	return func(yield func(field) bool) {
		for f := range new(Settings).fields() {
			if f.group == group && !f.fixed() && !yield(f) {
				return
			}
		}
	}
}

// describe is a setting's line in the help: the short line of a main setting, or all about it.
func describe(help string, tag *kong.Tag) string {
	if env := tag.Get("env"); env != "" && help != tag.Get("main") {
		help += spanOf(tag.Get) + " [" + env + "]"
	}
	return help
}

// spanOf is the sentence about a setting's range; empty if it has none.
func spanOf(tag func(string) string) string {
	if tag("min") == "" {
		return ""
	}
	return " From " + rangeOf(tag) + "."
}

// rangeOf writes the range of a setting, with the unit that its name tells: "1 to 3600 seconds".
func rangeOf(tag func(string) string) string {
	span := tag("min") + " to " + tag("max")
	for suffix, unit := range map[string]string{"_SECS": "seconds", "_MS": "milliseconds", "_HOURS": "hours"} {
		if strings.HasSuffix(tag("env"), suffix) {
			span += " " + unit
		}
	}
	return span
}

// Markdown is the reference of all settings, docs/configuration.md.
func Markdown() string {
	var b strings.Builder
	b.WriteString(`# Configuration

<!-- Written by "make docs" from lib/config/settings.go. -->

A setting is a flag, a variable of the environment, or a line of ` + "`.env`" + ` in the working directory
(or of the file that ` + "`NGIT_ENV_FILE`" + ` names). Flags come before the environment, the environment
before ` + "`.env`" + `, and that before the defaults. A variable that is empty is not set. Lists are
comma-separated. Times have their unit: ` + "`500ms`, `30s`, `5m`, `24h`" + `. Sizes have one, too, or are a number
of bytes: ` + "`64MiB`, `2GiB`" + `.

Every service takes the same settings and uses those that concern it, so one environment serves all
of them. Only ` + "`NGIT_DOMAIN`" + ` must be set. A wrong value stops the start with one sentence that names
the setting, the value, and what would be right. A variable named ` + "`NGIT_…`" + ` that is no setting is named
in a warning at the start.

Names that other GRASP servers have mean the same here: an existing ` + "`.env`" + ` works unchanged
([running.md](running.md#coming-from-another-grasp-server)).
`)
	for _, group := range groups {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| setting | flag | default | meaning |\n| --- | --- | --- | --- |\n", group.Title, group.Description)
		for f := range settings(group.Key) {
			value := strings.Trim(f.plainDefault(), `"`)
			if value != "" {
				value = "`" + value + "`"
			}
			fmt.Fprintf(&b, "| `%s` | `--%s` | %s | %s |\n", f.name(), flagName(f.name()), value, f.meaning())
		}
	}
	return b.String()
}

// DotEnv is .env.example: every setting as a comment with its default.
func DotEnv() string {
	var b strings.Builder
	b.WriteString("# Settings of Tendril. Copy to .env and change what should differ. Written by \"make docs\" from lib/config/settings.go.\n")
	for _, group := range groups {
		fmt.Fprintf(&b, "\n# --- %s: %s\n", group.Title, group.Description)
		for f := range settings(group.Key) {
			switch f.name() {
			case envFileName:
			case "NGIT_DOMAIN":
				fmt.Fprintf(&b, "\n# %s\n%s=git.example.com\n", f.meaning(), f.name())
			default:
				fmt.Fprintf(&b, "\n# %s\n#%s=%s\n", f.meaning(), f.name(), f.plainDefault())
			}
		}
	}
	return b.String()
}

func (f field) meaning() string { return f.Tag.Get("help") + spanOf(f.Tag.Get) }

// plainDefault is the default as it would be written in `.env`.
func (f field) plainDefault() string {
	value := f.Tag.Get("default")
	if value == "" && f.Type.Kind() == reflect.Bool {
		return "false"
	}
	if strings.Contains(value, " ") {
		return `"` + value + `"`
	}
	return value
}
