package repository

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// domainsFile of the root lists the domains under which its repositories were ever served, one a
// line, and maxDomains bounds it in bytes.
const (
	domainsFile = ".domains"
	maxDomains  = 64 << 10
)

// Domains returns the domains under which the repositories were ever served, the current one among
// them: a service may be moved to another domain, and its owners' announcements still list the old
// one.
func (s *Store) Domains(current string) ([]string, error) {
	path := filepath.Join(s.root, domainsFile)
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the domains of earlier: %w", err)
	}
	known := strings.Fields(string(content[:min(len(content), maxDomains)]))
	if slices.Contains(known, current) {
		return known, nil
	}
	known = append(known, current)
	if len(content)+len(current) >= maxDomains {
		return known, nil
	}
	if err := writeDurably(path, strings.Join(known, "\n")+"\n"); err != nil {
		return nil, fmt.Errorf("note the domain: %w", err)
	}
	return known, nil
}
