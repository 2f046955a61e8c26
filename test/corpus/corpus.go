// Package corpus makes sets of signed NIP-34 events of any size. The same spec gives the same keys
// and contents, so that a set can be kept in a file from run to run.
package corpus

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

// Spec says what a set has.
type Spec struct {
	Repositories int
	Roots        int // patches and issues in turn, of all repositories together
	Comments     int // to each root
	// Pulls makes every third root a pull request for Commit, which the repositories have.
	Pulls  bool
	Commit string
	// Bare comments name their root alone. A relay answers newest first, so each comes before the
	// event that makes it acceptable.
	Bare bool
}

// Size is how many events follow from a spec, without announcements and states.
func (s Spec) Size() int { return s.Roots * (1 + s.Comments) }

const (
	authors = 997           // who write roots and comments
	begin   = 1_780_000_000 // created_at of the first event; the others follow, one a second
)

// person has a key that follows from its number.
func person(who ...any) *fixture.Person {
	sum := sha256.Sum256([]byte("corpus " + fmt.Sprint(who...)))
	return fixture.PersonOf(hex.EncodeToString(sum[:]))
}

// Owner is who announces a repository of a set.
func Owner(repository int) *fixture.Person { return person("owner ", repository) }

// Identifier is that of a repository of a set.
func Identifier(repository int) string { return fmt.Sprint("repo-", repository) }

// maker makes the events of a spec.
type maker struct {
	spec    Spec
	owners  []*fixture.Person
	authors []*fixture.Person
}

// newMaker knows the people of so many threads, beginning with one. A key takes longer to make than
// an event.
func newMaker(spec Spec, first, count int) *maker {
	m := &maker{spec: spec, authors: make([]*fixture.Person, authors)}
	for i := range spec.Repositories {
		m.owners = append(m.owners, Owner(i))
	}
	for n := first; n <= first+count+spec.Comments; n++ {
		if i := n % authors; m.authors[i] == nil {
			m.authors[i] = person("author ", i)
		}
	}
	return m
}

// thread makes a root and its comments.
func (m *maker) thread(n int) (lines [][]byte) {
	repository := n % m.spec.Repositories
	owner := m.owners[repository]
	address := owner.Address(Identifier(repository))
	kind := []int{1621, 1617}[n%2]
	if m.spec.Pulls {
		kind = []int{1621, 1617, 1618}[n%3]
	}
	tags := []nostr.Tag{{"a", address}, {"p", owner.PubKey}, {"subject", fmt.Sprintf("subject %d of %s", n, Identifier(repository))}}
	if kind == 1618 {
		tags = append(tags, nostr.Tag{"c", m.spec.Commit})
	}
	at := nostr.Timestamp(begin + n*(1+m.spec.Comments))
	root := m.authors[n%authors].At(at).Sign(kind, strings.Repeat(fmt.Sprintf("Body %d/%d. ", repository, n), 12), tags...)
	lines = append(lines, []byte(root.String()))
	for k := range m.spec.Comments {
		about := []nostr.Tag{{"E", root.ID}, {"K", fmt.Sprint(kind)}, {"P", root.PubKey}, {"e", root.ID}, {"k", fmt.Sprint(kind)}, {"p", root.PubKey}}
		if !m.spec.Bare {
			about = append(about, nostr.Tag{"A", address})
		}
		comment := m.authors[(n+k+1)%authors].At(at+nostr.Timestamp(k)+1).Sign(1111, "A reply to it.", about...)
		lines = append(lines, []byte(comment.String()))
	}
	return lines
}

// Threads makes so many roots and their comments, beginning with one, as JSON.
func Threads(spec Spec, first, count int) [][]byte {
	m, lines, workers := newMaker(spec, first, count), make([][][]byte, count), runtime.GOMAXPROCS(0)
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for i := w; i < count; i += workers {
				lines[i] = m.thread(first + i)
			}
		})
	}
	all.Wait()
	return slices.Concat(lines...)
}

// File returns a file with all roots and comments of a spec, one event's JSON a line, oldest first.
// It makes the file in a folder unless it is there already.
func File(spec Spec, dir string) (path string, err error) {
	sum := sha256.Sum256(fmt.Appendf(nil, "%+v", spec))
	path = filepath.Join(dir, fmt.Sprintf("corpus-%d-%s.jsonl", spec.Size(), hex.EncodeToString(sum[:6])))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	part := path + ".part" // the whole file or none
	if err := os.WriteFile(part, bytes.Join(Threads(spec, 0, spec.Roots), []byte("\n")), 0o600); err != nil {
		return "", fmt.Errorf("keep a set of events: %w", err)
	}
	return path, os.Rename(part, path)
}

// Read reads such a file.
func Read(path string) ([][]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read a set of events: %w", err)
	}
	return Lines(data), nil
}

// Lines are the lines of a text, which they share; empty ones are left out.
func Lines(data []byte) (lines [][]byte) {
	for line := range bytes.Lines(data) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			lines = append(lines, line)
		}
	}
	return lines
}
