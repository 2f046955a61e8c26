package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

const (
	prefix      = "NGIT_"
	envFileName = "NGIT_ENV_FILE"
)

// Source is where settings come from that no flag names. It serves one parse.
type Source struct {
	Environ []string // "NAME=value" each; an empty value is no value
	Dir     string   // where `.env` may lie

	values   map[string]string // what is set, after the first look-up
	warnings []string          // of reading it
}

// resolve is a kong resolver.
func (s *Source) resolve(ctx *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	name := flag.Tag.Get("env")
	if name == "" {
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
		if name, value, ok := strings.Cut(line, "="); ok && value != "" && strings.HasPrefix(name, prefix) {
			environ[name] = value
		}
	}
	if file == "" {
		file = environ[envFileName]
	}
	values, err := s.readFile(file)
	if err != nil {
		return err
	}
	for name, value := range environ {
		values[name] = value
	}
	s.values = values
	return nil
}

// readFile reads an env file; without a name `.env`, which need not be there.
func (s *Source) readFile(file string) (map[string]string, error) {
	path := file
	if file == "" {
		path = filepath.Join(s.Dir, ".env")
	}
	text, err := readBounded(path)
	if err != nil && file == "" && errors.Is(err, fs.ErrNotExist) {
		return map[string]string{}, nil
	}
	var read map[string]string
	if err == nil {
		read, s.warnings, err = parseDotEnv(text, s.environment)
	}
	if err != nil {
		if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
			err = pathErr.Err
		}
		return nil, &Error{Setting: envFileName, Value: path, Reason: fmt.Sprintf("cannot be read (%v); want a file with lines like NGIT_DOMAIN=git.example.com", err)}
	}
	values := map[string]string{}
	for name, value := range read {
		if value != "" {
			values[name] = value
		}
	}
	return values, nil
}

func readBounded(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxEnvFile+1))
	if err == nil && len(text) > maxEnvFile {
		err = fmt.Errorf("it is larger than %d bytes", maxEnvFile)
	}
	return string(text), err
}

// environment looks up a variable of any name.
func (s *Source) environment(name string) (string, bool) {
	for _, line := range s.Environ {
		if n, value, ok := strings.Cut(line, "="); ok && n == name {
			return value, true
		}
	}
	return "", false
}

// strangers tells of names that look like settings and are none: most are misspelt.
func (s *Source) strangers() []string {
	var known []string
	for f := range (Settings{}).fields() {
		known = append(known, names(f.Tag.Get)...)
	}
	for _, f := range foreign {
		known = append(known, f.name)
	}
	var warnings []string
	for name := range s.values {
		if !strings.HasPrefix(name, prefix) || slices.Contains(known, name) {
			continue
		}
		warning := fmt.Sprintf("%.64s is set, but there is no such setting", name)
		if near := nearest(name, known); near != "" {
			warning += "; " + near + " is meant?"
		}
		warnings = append(warnings, warning)
	}
	slices.Sort(warnings)
	return append(s.warnings, warnings...)
}

// foreign are settings of other GRASP servers that have no counterpart here and that it would harm
// to overlook: with these values they change who may read, or under which URL everything is.
var foreign = []struct {
	name, harmless, reason string
}{
	{"NGIT_PRIVATE_MODE", "false", "private services (GRASP-08) are not supported: everything here can be read by everybody; unset it"},
	{"NGIT_PRIVATE_MEMBERS", "", "private services (GRASP-08) are not supported: everything here can be read by everybody; unset it"},
	{"NGIT_BASE_PATH", "/", "a path below the domain is not supported; want / or nothing"},
}

// refuse stops a start that would overlook a setting of another GRASP server which must not be.
func (s *Source) refuse() error {
	for _, f := range foreign {
		if value := strings.TrimSpace(s.values[f.name]); value != "" && !strings.EqualFold(value, f.harmless) {
			return &Error{Setting: f.name, Value: value, Reason: f.reason}
		}
	}
	return nil
}

// nearest is the known name that fewest edits make of name; empty if none is near.
func nearest(name string, known []string) string {
	best, fewest := "", 4
	for _, k := range known {
		if len(name) < len(k)+fewest && len(k) < len(name)+fewest {
			if n := edits(name, k); n < fewest {
				best, fewest = k, n
			}
		}
	}
	return best
}

// edits is the Levenshtein distance: bytes to insert, delete or replace.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
