package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
	"github.com/alecthomas/kong"
	"github.com/joho/godotenv"
)

const (
	prefix      = "NGIT_"
	envFileName = "NGIT_ENV_FILE"
)

// Source is where settings come from that no flag names. It serves one parse.
type Source struct {
	Environ []string // "NAME=value" each; an empty value is no value
	Dir     string   // where `.env` may lie

	product bool              // a test wants what the product does
	values  map[string]string // what is set, after the first look-up
}

// Process is where the settings of this process come from: its environment, and `.env`.
func Process() *Source { return &Source{Environ: os.Environ(), Dir: "."} }

// resolve is a kong resolver.
func (s *Source) resolve(ctx *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	if flag.Tag.Get("env") == "" {
		return nil, nil
	}
	if s.values == nil {
		if err := s.read(envFileFlag(ctx)); err != nil {
			return nil, err
		}
	}
	for _, name := range names(flag.Tag.Get) {
		if value, ok := s.values[name]; ok {
			return value, nil
		}
	}
	return nil, nil
}

// names are the variables that a setting is read from: its own name, then the names that other
// GRASP servers have for it (its tag "also").
func names(tag func(string) string) []string {
	return append([]string{tag("env")}, strings.Fields(tag("also"))...)
}

// envFileFlag is the value of --env-file, if it was given.
func envFileFlag(ctx *kong.Context) string {
	for _, p := range ctx.Path {
		if p.Flag != nil && !p.Resolved && p.Flag.Tag.Get("env") == envFileName {
			name, _ := ctx.FlagValue(p.Flag).(string)
			return name
		}
	}
	return ""
}

// read puts the environment over the env file. file is the one that a flag names.
func (s *Source) read(file string) error {
	environ := map[string]string{}
	for _, line := range s.Environ {
		if name, value, ok := strings.Cut(line, "="); ok && value != "" {
			environ[name] = value
		}
	}
	var err error
	if s.values, err = readFile(cmp.Or(file, environ[envFileName]), s.Dir, environ); err != nil {
		return err
	}
	maps.Copy(s.values, environ)
	maps.DeleteFunc(s.values, func(name, value string) bool { return value == "" || !strings.HasPrefix(name, prefix) })
	return nil
}

// readFile reads an env file; without a name `.env`, which need not be there. An error quotes
// nothing of the file, which may hold secrets.
func readFile(file, dir string, environ map[string]string) (values map[string]string, err error) {
	path := cmp.Or(file, filepath.Join(dir, ".env"))
	text, err := os.ReadFile(path)
	if file == "" && errors.Is(err, fs.ErrNotExist) {
		return map[string]string{}, nil
	}
	if err == nil {
		values, err = parseFile(string(text), environ)
	}
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		err = pathErr.Err
	}
	if err != nil {
		reason := fmt.Sprintf("cannot be read (%v); want a file with lines like NGIT_DOMAIN=git.example.com", err)
		return nil, &Error{envFileName, path, reason}
	}
	return values, nil
}

var (
	// commented is a comment in place of a value.
	commented = regexp.MustCompile(`(?m)^([ \t]*(?:export[ \t]+)?NGIT_[A-Z0-9_]+[ \t]*=)[ \t]*#.*$`)
	// referenced is a variable in a value: $NAME or ${NAME}.
	referenced = regexp.MustCompile(`\$\{?([A-Za-z_][A-Za-z0-9_]*)`)
)

// parseFile reads the text of an env file. Its references to variables of the environment work as
// well as those to earlier lines.
func parseFile(text string, environ map[string]string) (map[string]string, error) {
	text = commented.ReplaceAllString(strings.TrimPrefix(text, "\ufeff"), "$1")
	var before strings.Builder
	for _, found := range referenced.FindAllStringSubmatch(text, -1) {
		if value := environ[found[1]]; !strings.Contains(value, "'") {
			fmt.Fprintf(&before, "%s='%s'\n", found[1], value)
		}
	}
	values, err := godotenv.Unmarshal(before.String() + text)
	if err != nil {
		return nil, errors.New("a line is not NAME=value, or a quote is not closed")
	}
	return values, nil
}

// strangers warns of names that look like settings and are none.
func (s *Source) strangers() []string {
	var known []string
	for f := range new(Settings).fields() {
		if !f.fixed() || s.setsConstants() {
			known = append(known, names(f.Tag.Get)...)
		}
	}
	for _, f := range foreign {
		known = append(known, f.name)
	}
	var warnings []string
	for name := range s.values {
		if slices.Contains(known, name) {
			continue
		}
		warning := fmt.Sprintf("%.64s is set, but there is no such setting", name)
		if near := nearest(name, known); near != "" {
			warning += "; " + near + " is meant?"
		}
		warnings = append(warnings, warning)
	}
	slices.Sort(warnings)
	return warnings
}

// nearest is the known name that fewest edits make of name; empty if none is near.
func nearest(name string, known []string) string {
	best, fewest := "", 4
	if len(name) > 64 {
		return ""
	}
	for _, k := range known {
		if n := levenshtein.ComputeDistance(name, k); n < fewest {
			best, fewest = k, n
		}
	}
	return best
}

type foreignSetting struct{ name, harmless, reason string }

// foreign are settings of other GRASP servers that have no counterpart here and that it would harm
// to overlook: with these values they change who may read, or under which URL everything is.
var foreign = []foreignSetting{
	{"NGIT_PRIVATE_MODE", "false",
		"private services (GRASP-08) are not supported: everyone can read what is here; unset it"},
	{"NGIT_PRIVATE_MEMBERS", "",
		"private services (GRASP-08) are not supported: everyone can read what is here; unset it"},
	{"NGIT_PRIVATE_PEERS", "", "private services (GRASP-08) are not supported: everyone can read what is here; unset it"},
	{"NGIT_BASE_PATH", "/", "a path below the domain is not supported; want / or nothing"},
}

// privatePrefix begins the names of settings that ask for protection, and privateOrigin is the one
// of them that asks for none by itself.
const (
	privatePrefix = "NGIT_PRIVATE_"
	privateOrigin = "NGIT_PRIVATE_PUBLIC_ORIGIN"
)

// refuse stops a start that would overlook a setting of another GRASP server which must not be, or
// a misspelt one that asks for protection.
func (s *Source) refuse() error {
	for _, f := range foreign {
		if value := strings.TrimSpace(s.values[f.name]); value != "" && !strings.EqualFold(value, f.harmless) {
			return &Error{f.name, value, f.reason}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.values)) {
		isKnown := name == privateOrigin || slices.ContainsFunc(foreign,
			func(f foreignSetting) bool { return f.name == name })
		if strings.HasPrefix(name, privatePrefix) && !isKnown && strings.TrimSpace(s.values[name]) != "" {
			return &Error{fmt.Sprintf("%.64s", name), "", // it may be a secret
				"is set, but there is no such setting, and it seems to ask for protection: everyone can read what is here; unset it"}
		}
	}
	return nil
}
