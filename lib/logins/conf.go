package logins

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"tendril.dev/proto"
)

const head = `# Accounts and users of the NATS server and what each may do. Written by 'tendril logins': do not edit.
# Include it in the server's configuration: include "./users.conf"
accounts `

// What follows is the configuration of accounts as NATS reads it: a superset of JSON.
type (
	account struct {
		JetStream string   `json:"jetstream,omitempty"`
		Users     []User   `json:"users"`
		Exports   []export `json:"exports,omitempty"`
		Imports   []imp    `json:"imports,omitempty"`
	}
	export struct {
		Service  string   `json:"service,omitempty"`
		Stream   string   `json:"stream,omitempty"`
		Response string   `json:"response_type,omitempty"`
		Accounts []string `json:"accounts"`
	}
	imp struct {
		Service *subject `json:"service,omitempty"`
		Stream  *subject `json:"stream,omitempty"`
		To      string   `json:"to,omitempty"`
	}
	subject struct {
		Account string `json:"account"`
		Subject string `json:"subject"`
	}
)

// User is a user of the server as users.conf has it: its name, which is a role with or without a
// number, and the bcrypt hash of its password.
type User struct {
	Name        string         `json:"user"`
	Hash        string         `json:"password"`
	Permissions map[string]any `json:"permissions,omitempty"` // Render says them
}

// Render writes the accounts of a NATS server with the users that there are. What users of other
// accounts than the core may do they import from it: what they publish is a service of the core,
// what they hear a stream, and what they answer a service of their own.
func Render(users []User) (string, error) {
	accounts := map[string]*account{proto.AccountCore: {JetStream: "enabled", Users: []User{}}}
	services, streams := map[string][]string{}, map[string][]string{}
	var served []imp // by other accounts than the core
	for _, p := range proto.Users() {
		own := slices.DeleteFunc(slices.Clone(users), func(u User) bool { return Role(u.Name) != p.User })
		if len(own) == 0 {
			continue
		}
		slices.SortFunc(own, func(a, b User) int { return strings.Compare(a.Name, b.Name) })
		name := proto.AccountOf(p.User)
		if accounts[name] == nil {
			accounts[name] = &account{}
		}
		a := accounts[name]
		publish := []string{}
		for _, s := range p.Publish {
			for _, local := range proto.LocalSubjects(p.User, s) {
				publish = append(publish, local)
				i := imp{Service: &subject{proto.AccountCore, s}, To: local}
				if local == s {
					i.To = ""
				}
				a.Imports = append(a.Imports, i)
			}
			if name != proto.AccountCore {
				services[s] = append(services[s], name)
			}
		}
		for _, s := range p.Subscribe {
			a.Imports = append(a.Imports, imp{Stream: &subject{proto.AccountCore, s}})
			if name != proto.AccountCore {
				streams[s] = append(streams[s], name)
			}
		}
		for _, s := range p.Serve {
			if name != proto.AccountCore {
				a.Exports = append(a.Exports, export{Service: s, Accounts: []string{proto.AccountCore}})
				served = append(served, imp{Service: &subject{name, s}})
			}
		}
		permissions := map[string]any{
			"publish": map[string][]string{"allow": publish},
			"subscribe": map[string][]string{"allow": append(slices.Concat(p.Subscribe, p.Serve),
				proto.InboxPrefix(p.User)+".>")},
		}
		if p.Answers {
			permissions["allow_responses"] = map[string]any{"max": -1, "expires": proto.AnswerTime.String()}
		}
		for _, u := range own {
			a.Users = append(a.Users, User{u.Name, u.Hash, permissions})
		}
	}
	core := accounts[proto.AccountCore]
	core.Imports = served
	for _, s := range slices.Sorted(maps.Keys(services)) {
		e := export{Service: s, Accounts: services[s]}
		if proto.AnswersOften(s) {
			e.Response = "stream"
		}
		core.Exports = append(core.Exports, e)
	}
	for _, s := range slices.Sorted(maps.Keys(streams)) {
		core.Exports = append(core.Exports, export{Stream: s, Accounts: streams[s]})
	}
	b := bytes.NewBufferString(head)
	encoder := json.NewEncoder(b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(accounts); err != nil {
		return "", fmt.Errorf("write the accounts: %w", err)
	}
	return b.String(), nil
}

var errConf = errors.New("it is not as 'tendril logins' writes it")

// parse reads the users and hashes of a users.conf. Users that this version does not know are an
// error, because Render would leave them out.
func parse(text string) (users []User, err error) {
	_, text, ok := strings.Cut(text, "\naccounts ")
	var accounts map[string]account
	if err := json.Unmarshal([]byte(text), &accounts); !ok || err != nil {
		return nil, errConf
	}
	for _, a := range accounts {
		for _, u := range a.Users {
			if u.Hash == "" || proto.PermissionsOf(Role(u.Name)).User == "" {
				return nil, fmt.Errorf("%w: this version has no user %q", errConf, u.Name)
			}
			users = append(users, u)
		}
	}
	return users, nil
}
