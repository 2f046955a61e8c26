// Package corpus makes sets of signed NIP-34 events of any size. The same spec gives the same keys
// and contents, so that a set can be kept in a file from run to run.
package corpus

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/outside"
)

// Spec says what a set has.
type Spec struct {
	Repositories int
	Roots        int // patches and issues in turn, of all repositories together
	Comments     int // to each root
	// Pulls makes every third root a pull request for Commit, which the repositories have.
	Pulls  bool
	Commit string
}

// Size is how many events follow from a spec, without announcements and states.
func (s Spec) Size() int { return s.Roots * (1 + s.Comments) }

const (
	authors = 997           // who write roots and comments
	begin   = 1_780_000_000 // created_at of the first event; the others follow, one a second
)

// person has a key that follows from its number.
func person(who ...any) (*outside.Person, error) {
	sum := sha256.Sum256([]byte("corpus " + fmt.Sprint(who...)))
	return outside.PersonOf(hex.EncodeToString(sum[:]))
}

// Owner is who announces a repository of a set.
func Owner(repository int) (*outside.Person, error) { return person("owner ", repository) }

// Identifier is that of a repository of a set.
func Identifier(repository int) string { return fmt.Sprint("repo-", repository) }

// maker makes the events of a spec.
type maker struct {
	spec    Spec
	owners  []*outside.Person
	authors []*outside.Person
}

// newMaker knows the people of so many threads, beginning with one. A key takes longer to make than
// an event.
func newMaker(spec Spec, first, count int) (*maker, error) {
	m := &maker{spec: spec, authors: make([]*outside.Person, authors)}
	for i := range spec.Repositories {
		p, err := Owner(i)
		if err != nil {
			return nil, err
		}
		m.owners = append(m.owners, p)
	}
	for n := first; n <= first+count+spec.Comments; n++ {
		i := n % authors
		if m.authors[i] != nil {
			continue
		}
		p, err := person("author ", i)
		if err != nil {
			return nil, err
		}
		m.authors[i] = p
	}
	return m, nil
}

// thread makes a root and its comments.
func (m *maker) thread(n int) ([]*nostr.Event, error) {
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
	root, err := m.authors[n%authors].Sign(at, kind, strings.Repeat(fmt.Sprintf("Body %d/%d. ", repository, n), 12), tags...)
	if err != nil {
		return nil, err
	}
	events := []*nostr.Event{root}
	for k := range m.spec.Comments {
		author := m.authors[(n+k+1)%authors]
		comment, err := author.Sign(at+nostr.Timestamp(k)+1, 1111, "A reply to it.",
			nostr.Tag{"E", root.ID}, nostr.Tag{"K", fmt.Sprint(kind)}, nostr.Tag{"P", root.PubKey},
			nostr.Tag{"e", root.ID}, nostr.Tag{"k", fmt.Sprint(kind)}, nostr.Tag{"p", root.PubKey}, nostr.Tag{"A", address})
		if err != nil {
			return nil, err
		}
		events = append(events, comment)
	}
	return events, nil
}

// Threads makes so many roots and their comments, beginning with one, as JSON.
func Threads(spec Spec, first, count int) ([][]byte, error) {
	m, err := newMaker(spec, first, count)
	if err != nil {
		return nil, err
	}
	lines := make([][][]byte, count)
	errs := make([]error, runtime.GOMAXPROCS(0))
	var all sync.WaitGroup
	for w := range errs {
		all.Go(func() {
			for i := w; i < count && errs[w] == nil; i += len(errs) {
				var events []*nostr.Event
				events, errs[w] = m.thread(first + i)
				for _, ev := range events {
					lines[i] = append(lines[i], []byte(ev.String()))
				}
			}
		})
	}
	all.Wait()
	var flat [][]byte
	for _, l := range lines {
		flat = append(flat, l...)
	}
	for _, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("make a set of events: %w", err)
		}
	}
	return flat, nil
}

// File returns a file with all roots and comments of a spec, one event's JSON a line, oldest first.
// It makes the file in a folder unless it is there already.
func File(spec Spec, dir string) (path string, err error) {
	sum := sha256.Sum256(fmt.Appendf(nil, "%+v", spec))
	path = filepath.Join(dir, fmt.Sprintf("corpus-%d-%s.jsonl", spec.Size(), hex.EncodeToString(sum[:6])))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	lines, err := Threads(spec, 0, spec.Roots)
	if err != nil {
		return "", err
	}
	if err := write(path, lines); err != nil {
		return "", fmt.Errorf("keep a set of events: %w", err)
	}
	return path, nil
}

// write writes the whole file or none.
func write(path string, lines [][]byte) error {
	part, err := os.CreateTemp(filepath.Dir(path), "corpus-*.part")
	if err != nil {
		return err
	}
	defer os.Remove(part.Name()) // fails when it has its name
	out := bufio.NewWriterSize(part, 1<<20)
	for _, line := range lines {
		out.Write(line) // the error is Flush's
		out.WriteByte('\n')
	}
	if err := out.Flush(); err != nil {
		part.Close()
		return err
	}
	if err := part.Close(); err != nil {
		return err
	}
	return os.Rename(part.Name(), path)
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
