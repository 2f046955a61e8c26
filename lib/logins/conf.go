package logins

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nats-io/nats-server/v2/conf"

	"tendril.dev/proto"
)

const head = `# Accounts and users of the NATS server and what each may do. Written by 'tendril logins': do not edit.
# Include it in the server's configuration: include "./users.conf"

accounts `

// What follows is the configuration of accounts as NATS reads it.
type (
	account struct {
		JetStream string   `json:"jetstream,omitempty"`
		Users     []user   `json:"users"`
		Exports   []export `json:"exports,omitempty"`
		Imports   []imp    `json:"imports,omitempty"`
	}
	user struct {
		User        string         `json:"user"`
		Password    string         `json:"password"`
		Permissions map[string]any `json:"permissions,omitempty"`
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

// Render writes the accounts of a NATS server with the users that there are: name and bcrypt hash.
// What users of other accounts than the core may do they import from it: what they publish is a
// service of the core, what they hear a stream.
func Render(entries []User) (string, error) {
	accounts := map[string]*account{proto.AccountCore: {JetStream: "enabled", Users: []user{}}}
	services, streams := map[string][]string{}, map[string][]string{}
	for _, p := range proto.Users() {
		name := proto.AccountOf(p.User)
		own := slices.DeleteFunc(slices.Clone(entries), func(e User) bool { return Role(e.Name) != p.User })
		slices.SortFunc(own, func(a, b User) int { return strings.Compare(a.Name, b.Name) })
		if len(own) == 0 {
			continue
		}
		if name != proto.AccountCore {
			accounts[name] = &account{}
			for _, s := range p.Publish {
				for _, local := range proto.LocalSubjects(p.User, s) {
					i := imp{Service: &subject{proto.AccountCore, s}}
					if local != s {
						i.To = local
					}
					accounts[name].Imports = append(accounts[name].Imports, i)
				}
				services[s] = append(services[s], name)
			}
			for _, s := range p.Subscribe {
				accounts[name].Imports = append(accounts[name].Imports, imp{Stream: &subject{proto.AccountCore, s}})
				streams[s] = append(streams[s], name)
			}
		}
		for _, e := range own {
			accounts[name].Users = append(accounts[name].Users, user{e.Name, e.Hash, permissionsOf(p)})
		}
	}
	core := accounts[proto.AccountCore]
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
	encoder := json.NewEncoder(b) // what NATS reads is a superset of JSON
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(accounts); err != nil {
		return "", fmt.Errorf("write the accounts: %w", err)
	}
	return b.String(), nil
}

func permissionsOf(p proto.Permissions) map[string]any {
	var publish []string
	for _, s := range p.Publish {
		publish = append(publish, proto.LocalSubjects(p.User, s)...)
	}
	permissions := map[string]any{
		"publish":   map[string][]string{"allow": publish},
		"subscribe": map[string][]string{"allow": append(slices.Clone(p.Subscribe), proto.InboxPrefix(p.User)+".>")},
	}
	if p.Answers {
		permissions["allow_responses"] = map[string]any{"max": -1, "expires": proto.AnswerTime.String()}
	}
	return permissions
}

var errConf = errors.New("it is not as 'tendril logins' writes it")

// parse reads the users and hashes of a users.conf. Users that this version does not know are an
// error, because render would leave them out.
func parse(text string) ([]User, error) {
	root, err := conf.Parse(text)
	if err != nil {
		return nil, err
	}
	accounts, ok := root["accounts"].(map[string]any)
	if !ok {
		return nil, errConf
	}
	var users []any
	for _, a := range accounts {
		fields, _ := a.(map[string]any)
		own, ok := fields["users"].([]any)
		if !ok {
			return nil, errConf
		}
		users = append(users, own...)
	}
	var entries []User
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
		entries = append(entries, User{name, hash})
	}
	return entries, nil
}
