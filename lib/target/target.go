// Package target is what one relay should be asked for, as discovery publishes it and relay workers
// read it: a list of repositories with their levels, each in a message of its own.
package target

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"tendril.dev/proto"
)

// Target is what one relay should be asked for. The zero value asks for nothing; a target that has
// only layer 1 has a URL and no repository.
type Target struct {
	URL       string // normalised, to connect to
	Bootstrap bool
	Repos     map[string]Repo // by reference, 30617:<pubkey>:<identifier>
}

// Repo is what is wanted of one repository.
type Repo struct {
	Level   proto.Level
	Authors []string // StateOnly: the maintainers known, sorted
}

// Exists reports whether the target is one at all.
func (t Target) Exists() bool { return t.URL != "" }

// Level is the highest level that the target wants of a repository; empty: it has none.
func (t Target) Level() (highest proto.Level) {
	for _, r := range t.Repos {
		if r.Level == proto.LevelFull {
			return r.Level
		}
		highest = r.Level
	}
	return highest
}

// Messages are what GRASP_TARGETS has to say of a target, by subject. key is the relay's identity.
// What has no subject, because its name is too long, is left out.
func (t Target) Messages(key string) (map[string][]byte, error) {
	subject, err := proto.TargetSubject(key)
	if err != nil {
		return nil, fmt.Errorf("target of %q: %w", key, err)
	}
	messages := make(map[string][]byte, 1+len(t.Repos))
	if messages[subject], err = json.Marshal(proto.Target{URL: t.URL, Bootstrap: t.Bootstrap, Level: t.Level()}); err != nil {
		return nil, fmt.Errorf("target of %q: %w", key, err)
	}
	for ref, r := range t.Repos {
		subject, err := proto.WantedSubject(key, ref)
		if err != nil {
			continue
		}
		if messages[subject], err = json.Marshal(proto.Wanted{Level: r.Level, Authors: r.Authors}); err != nil {
			return nil, fmt.Errorf("target of %q: %w", key, err)
		}
	}
	return messages, nil
}

// ID is an event id.
type ID [32]byte

// String is the id as 64 hex digits.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// ParseID reads 64 hex digits.
func ParseID(s string) (ID, bool) {
	var id ID
	if len(s) != 2*len(id) {
		return id, false
	}
	_, err := hex.Decode(id[:], []byte(s))
	return id, err == nil
}

// Compare orders ids by their bytes. Ids are hashes, so that the first eight bytes nearly always
// decide.
func (id ID) Compare(other ID) int {
	a, b := binary.BigEndian.Uint64(id[:8]), binary.BigEndian.Uint64(other[:8])
	if a != b {
		return cmp.Compare(a, b)
	}
	return bytes.Compare(id[8:], other[8:])
}

// SortIDs returns the ids sorted and each once; it may reorder its argument.
func SortIDs(ids []ID) []ID {
	slices.SortFunc(ids, ID.Compare)
	return slices.Clip(slices.Compact(ids))
}
