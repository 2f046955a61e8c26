package config

const heldByParty = "purgatory has one bound in all, and shares it out by itself"

// removed are names that were settings, and what there is instead. Constants are named by their
// declaration.
var removed = map[string]string{
	"NGIT_EVENTS_PER_MINUTE":                  "NGIT_EVENTS_PER_MINUTE_PER_IP counts the events of all connections of an address",
	"NGIT_GIT_PRUNE_INTERVAL":                 "git gc removes what nothing has named for a day",
	"NGIT_INDEX_COPY_RATE":                    "indexes are not copied between processes",
	"NGIT_MAX_OBJECT_BYTES":                   "git is bounded in its memory and time",
	"NGIT_MAX_RECONCILIATIONS":                "sessions count as subscriptions",
	"NGIT_MAX_RECONCILIATIONS_PER_CONNECTION": "sessions count as subscriptions",
	"NGIT_MAX_RECONCILIATIONS_PER_IP":         "sessions count as subscriptions",
	"NGIT_MAX_UNPACKED_BYTES":                 "git is bounded in its memory and time",
	"NGIT_PURGATORY_MAX_BYTES_PER_AUTHOR":     heldByParty,
	"NGIT_PURGATORY_MAX_BYTES_PER_CLIENT":     heldByParty,
	"NGIT_PURGATORY_MAX_BYTES_PER_RELAY":      heldByParty,
	"NGIT_PURGATORY_MAX_PER_AUTHOR":           heldByParty,
	"NGIT_PURGATORY_MAX_PER_CLIENT":           heldByParty,
	"NGIT_PURGATORY_MAX_PER_RELAY":            heldByParty,
	"NGIT_PURGATORY_RESERVED_BYTES":           heldByParty,
	"NGIT_PUSH_SECRETS":                       "pushes are not searched for secrets",
	"NGIT_RELAY_MAX_SUBSCRIPTIONS":            "it is always 500, as NGIT_MAX_SUBSCRIPTIONS was",
	"NGIT_SYNC_MAX_HELD_TARGETS":              "it is always 1000",
	"NGIT_SYNC_MAX_TARGETS":                   "it is always 20000",
	"NGIT_TRUST_FORWARDED_FOR":                "name your reverse proxy in NGIT_TRUSTED_PROXIES",
}

// replacement says what there is instead of a setting that was removed.
func replacement(name string) (instead string, ok bool) {
	if instead, ok = removed[name]; ok {
		return instead, true
	}
	for f := range new(Settings).fields() {
		if f.fixed() && f.name() == name {
			if value := f.Tag.Get("constant"); value != "" {
				return "it is always " + value, true
			}
			return "it is always off", true
		}
	}
	return "", false
}
