package config

import (
	"flag"
	"fmt"
	"iter"
	"os"
	"reflect"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/configuration.md and .env.example")

// TestReferenceIsUpToDate, or makes it so with -update: `make docs` does.
func TestReferenceIsUpToDate(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{"../../docs/configuration.md": markdown(), "../../.env.example": dotEnv()} {
		if *update {
			must(t, os.WriteFile(path, []byte(want), 0o644))
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		} else if string(got) != want {
			t.Errorf("%s differs from the declaration; run `make docs`", path)
		}
	}
}

// settings returns the declared settings of a group.
func settings(group string) iter.Seq[field] {
	return func(yield func(field) bool) {
		for topic, values := range reflect.ValueOf(new(Settings)).Elem().Fields() {
			if topic.Tag.Get("group") != group {
				continue
			}
			for f, value := range values.Fields() {
				if !yield(field{f, value}) {
					return
				}
			}
		}
	}
}

// markdown is the reference of all settings, docs/configuration.md.
func markdown() string {
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
			flag := "`--" + flagName(f.name()) + "`"
			if f.Tag.Get("noflag") != "" {
				flag = "none"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.name(), flag, value, f.meaning())
		}
	}
	return b.String()
}

// dotEnv is .env.example: every setting as a comment with its default.
func dotEnv() string {
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
