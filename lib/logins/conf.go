package logins

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats-server/v2/conf"

	"tendril.dev/proto"
)

const head = `# Users of the NATS server and what each may do. Written by 'tendril logins': do not edit.
# Include it in the server's configuration: include "./users.conf"

authorization {
  users = [
`

// render writes users.conf. Users are in the order of proto.Users, of one role by name.
func render(entries []entry) (string, error) {
	var b strings.Builder
	b.WriteString(head)
	for _, p := range proto.Users() {
		own := slices.DeleteFunc(slices.Clone(entries), func(e entry) bool { return Role(e.User) != p.User })
		slices.SortFunc(own, func(a, b entry) int { return strings.Compare(a.User, b.User) })
		for _, e := range own {
			if err := renderUser(&b, e, p); err != nil {
				return "", err
			}
		}
	}
	b.WriteString("  ]\n}\n")
	return b.String(), nil
}

// renderUser writes one user. What NATS reads is a superset of JSON.
func renderUser(b *strings.Builder, e entry, p proto.Permissions) error {
	permissions := map[string]any{
		"publish":   map[string][]string{"allow": p.Publish},
		"subscribe": map[string][]string{"allow": p.Subscribe},
	}
	if p.Answers {
		permissions["allow_responses"] = map[string]any{"max": -1, "expires": proto.AnswerTime.String()}
	}
	user := struct {
		User        string         `json:"user"`
		Password    string         `json:"password"`
		Permissions map[string]any `json:"permissions"`
	}{e.User, e.Hash, permissions}
	encoder := json.NewEncoder(b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("    ", "  ")
	b.WriteString("    ")
	if err := encoder.Encode(user); err != nil {
		return fmt.Errorf("write user %s: %w", e.User, err)
	}
	return nil
}

var errConf = errors.New("it is not as 'tendril logins' writes it")

// parse reads the users and hashes of a users.conf. Users that this version does not know are an
// error, because render would leave them out.
func parse(text string) ([]entry, error) {
	root, err := conf.Parse(text)
	if err != nil {
		return nil, err
	}
	authorization, _ := root["authorization"].(map[string]any)
	users, ok := authorization["users"].([]any)
	if !ok {
		return nil, errConf
	}
	var entries []entry
	for _, u := range users {
		fields, _ := u.(map[string]any)
		name, _ := fields["user"].(string)
		hash, _ := fields["password"].(string)
		if name == "" || hash == "" {
			return nil, errConf
		}
		if proto.PermissionsOf(Role(name)).User == "" {
			return nil, fmt.Errorf("%w: this version has no user %q", errConf, name)
		}
		entries = append(entries, entry{name, hash})
	}
	return entries, nil
}
