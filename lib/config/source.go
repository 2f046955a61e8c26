package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"
	"github.com/alecthomas/kong"
	"github.com/joho/godotenv"
)

const (
	prefix      = "NGIT_"
	envFileName = "NGIT_ENV_FILE"
)

// emptyIsNone are the lists of which an empty value means that there are none. Elsewhere it means
// the default.
var emptyIsNone = map[string]bool{"NGIT_USER_INDEX_RELAYS": true, "NGIT_SYNC_PLUS_FALLBACK_RELAYS": true}

// doesNothing is a setting of other GRASP servers that is none here. It is understood, so that
// no operator is warned of it.
const doesNothing = "NGIT_SYNC_DISCONNECT_CHECK_INTERVAL_SECS"

// Source is where settings come from that no flag names. It serves one parse.
type Source struct {
	Environ []string // "NAME=value" each; an empty value is no value
	Dir     string   // where `.env` may lie

	values map[string]string // what is set, after the first look-up
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
		value, ok := s.values[name]
		if ok && strings.HasSuffix(name, "_SECS") && flag.Target.Type() == reflect.TypeFor[time.Duration]() {
			value = strings.TrimSpace(value) + "s" // the other name of a setting that has a unit here
		}
		if ok {
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
		if name, value, ok := strings.Cut(line, "="); ok && (value != "" || emptyIsNone[name]) {
			environ[name] = value
		}
	}
	var err error
	if s.values, err = readFile(cmp.Or(file, environ[envFileName]), s.Dir, environ); err != nil {
		return err
	}
	maps.Copy(s.values, environ)
	for name := range emptyIsNone {
		if value, set := s.values[name]; set && value == "" {
			s.values[name] = "none"
		}
	}
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

// known are the names that this process has settings for.
func (s *Source) known() (known []string) {
	for f := range new(Settings).fields() {
		known = append(known, names(f.Tag.Get)...)
	}
	return known
}

// strangers warns of names that look like settings and are none.
func (s *Source) strangers() []string {
	known := s.known()
	var warnings []string
	for name := range s.values {
		if slices.Contains(known, name) || name == doesNothing {
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

// privatePrefix begins the names of settings that ask for protection.
const privatePrefix = "NGIT_PRIVATE_"

// refuse stops a start that would overlook a misspelt setting which asks for protection.
func (s *Source) refuse() error {
	known := s.known()
	for _, name := range slices.Sorted(maps.Keys(s.values)) {
		if strings.HasPrefix(name, privatePrefix) && !slices.Contains(known, name) && strings.TrimSpace(s.values[name]) != "" {
			return &Error{fmt.Sprintf("%.64s", name), "", // it may be a secret
				"is set, but there is no such setting, and it seems to ask for protection: everyone could read what is here; unset it"}
		}
	}
	return nil
}
