// Package target is what one relay should be asked for, as discovery publishes it and relay workers
// read it: a list of repositories with their levels, each in a message of its own.
package target

import (
	"encoding/json"
	"fmt"

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
