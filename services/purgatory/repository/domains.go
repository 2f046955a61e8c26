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

// domainsFile of the root lists the domains under which its repositories were ever served, one a
// line, and maxDomains bounds it in bytes.
const (
	domainsFile = ".domains"
	maxDomains  = 64 << 10
)

// Domains returns the domains under which the repositories were served since a time, the current
// one among them: a service may be moved to another domain, and its owners' announcements still
// list the old one. Of the time before, nothing is known: the list is made anew where it is lost,
// as by a copy of the folder that leaves out what begins with a dot.
func (s *Store) Domains(current string) (domains []string, since time.Time, err error) {
	path := filepath.Join(s.root, domainsFile)
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, since, fmt.Errorf("read the domains of earlier: %w", err)
	}
	known := strings.Fields(string(content[:min(len(content), maxDomains)]))
	since = time.Now()
	if info, err := os.Stat(path); err == nil {
		since = info.ModTime()
	}
	if slices.Contains(known, current) {
		return known, since, nil
	}
	fresh := len(known) == 0
	known = append(known, current)
	if len(content)+len(current) >= maxDomains {
		return known, since, nil
	}
	err = writeDurably(path, strings.Join(known, "\n")+"\n")
	if err == nil && !fresh { // it is the time of the first entry
		err = os.Chtimes(path, since, since)
	}
	if err != nil {
		return nil, since, fmt.Errorf("note the domain: %w", err)
	}
	return known, since, nil
}
