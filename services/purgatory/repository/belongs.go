package repository

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	// belongsFile of the root says to which log and domain the repositories belong.
	belongsFile = ".belongs"
	// maxBelongs bounds it in bytes.
	maxBelongs = 64 << 10
)

// System is whom a folder of repositories belongs to: one log, and the domain under which the
// repositories are served.
type System struct {
	Log    string // the time at which the log was made; empty: it does not outlive the process
	Domain string
}

// Belongs is what is noted in a folder of repositories.
type Belongs struct {
	Log string
	// Domains are those under which the repositories were served since Since, the present one last:
	// a service may move to another domain, and its owners' announcements still list the old one.
	// Of the time before nothing is known.
	Domains []string
	Since   time.Time
}

// TakeFolder returns what is noted in a folder, which is made if need be. One that belongs to
// another system is an error that names the old and the new one; given says which log or domain the
// operator gives up, so that the folder belongs to this system from now on. Nothing else in the
// folder is read or changed.
func TakeFolder(root string, system System, given []string) (Belongs, error) {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return Belongs{}, fmt.Errorf("NGIT_GIT_DATA_PATH is %q: want a folder that can be written to (%w)", root, err)
	}
	path := filepath.Join(root, belongsFile)
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Belongs{}, fmt.Errorf("read to which system the git folder belongs: %w", err)
	}
	before := parseBelongs(string(content[:min(len(content), maxBelongs)]))
	after, err := before.takenBy(system, given, root)
	if err != nil {
		return Belongs{}, err
	}
	if text := after.String(); text != string(content) {
		if err := writeDurably(path, text); err != nil {
			return Belongs{}, fmt.Errorf("note to which system the git folder belongs: %w", err)
		}
	}
	return after, nil
}

// takenBy is what is noted once the folder belongs to a system.
func (b Belongs) takenBy(system System, given []string, root string) (Belongs, error) {
	if b.Since.IsZero() {
		return Belongs{Log: system.Log, Domains: []string{system.Domain}, Since: time.Now().UTC()}, nil
	}
	if system.Log != "" && b.Log != system.Log {
		if b.Log != "" && !slices.Contains(given, b.Log) {
			return b, fmt.Errorf("NGIT_GIT_DATA_PATH is %q: its repositories belong to the log of %s, and this system has the log of %s: nothing was changed; "+
				"want the git folder of this system, or, to give up the old log, NGIT_FORGET_LOG=%s", root, b.Log, system.Log, b.Log)
		}
		b.Log = system.Log
	}
	if last := b.Domains[len(b.Domains)-1]; last != system.Domain {
		if !slices.Contains(given, last) {
			return b, fmt.Errorf("NGIT_DOMAIN is %q, and the repositories in NGIT_GIT_DATA_PATH (%s) were served as %s: nothing was changed; "+
				"want NGIT_DOMAIN=%s, or, if the service has moved to the new domain, NGIT_FORGET_LOG=%s", system.Domain, root, last, last, last)
		}
		b.Domains = append(slices.DeleteFunc(slices.Clone(b.Domains), func(d string) bool { return d == system.Domain }), system.Domain)
	}
	return b, nil
}

// String is the content of the file.
func (b Belongs) String() string {
	lines := "since " + b.Since.Format(time.RFC3339Nano) + "\n"
	if b.Log != "" {
		lines += "log " + b.Log + "\n"
	}
	for _, domain := range b.Domains {
		lines += "domain " + domain + "\n"
	}
	return lines
}

// parseBelongs reads the content of the file. One that makes no sense is none.
func parseBelongs(content string) (b Belongs) {
	for line := range strings.Lines(content) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch name {
		case "since":
			b.Since, _ = time.Parse(time.RFC3339, value)
		case "log":
			b.Log = value
		case "domain":
			b.Domains = append(b.Domains, value)
		}
	}
	if b.Since.IsZero() || len(b.Domains) == 0 {
		return Belongs{}
	}
	return b
}
