package config

import (
	"strings"

	"github.com/alecthomas/kong"
)

// groups are the topics of the settings, by the key that their declaration names.
var groups = []kong.Group{
	{Key: "Service", Title: "Service", Description: "Who we are and where we listen."},
	{Key: "Storage", Title: "Storage", Description: "Where data lies."},
	{Key: "Bus", Title: "Bus", Description: "NATS JetStream: embedded, or a server that several processes share."},
	{Key: "Policy", Title: "Policy", Description: "What is accepted, and how much of it."},
	{Key: "Sync", Title: "Sync", Description: "How other relays are followed."},
	{Key: "Git data", Title: "Git data", Description: "How git data is kept, hunted and served."},
	{Key: "Front door", Title: "Front door", Description: "How clients are treated."},
	{Key: "Private service", Title: "Private service", Description: "For members alone (docs/private.md)."},
	{Key: "Observation", Title: "Observation", Description: "Logs, metrics, health, shutdown."},
}

var helpOptions = kong.HelpOptions{Compact: true, FlagsLast: true, WrapUpperBound: 132,
	ValueFormatter: func(v *kong.Value) string { return describe(v.Help, v.Tag) }}

// HelpAll is the flag --help-all of a grammar: the help with every setting.
type HelpAll bool

// BeforeReset prints the help and ends the program.
func (HelpAll) BeforeReset(ctx *kong.Context) error {
	eachFlag(ctx.Model.Node, func(flag *kong.Flag) { flag.Hidden = false })
	defer ctx.Exit(0)
	return kong.DefaultHelpPrinter(helpOptions, ctx)
}

// shortHelp prints the help with the main settings, one line each.
func shortHelp(options kong.HelpOptions, ctx *kong.Context) error {
	eachFlag(ctx.Model.Node, func(flag *kong.Flag) {
		if flag.Tag.Has("main") {
			flag.Help, flag.Group = flag.Tag.Get("main"), nil
		}
		if flag.Name == "version" && ctx.Selected() != nil {
			flag.Hidden = true // of a command, only what is its own
		}
	})
	return kong.DefaultHelpPrinter(options, ctx)
}

// describe is a setting's line in the help: the short line of a main setting, or all about it.
func describe(help string, tag *kong.Tag) string {
	if env := tag.Get("env"); env != "" && help != tag.Get("main") {
		help += spanOf(tag.Get) + " [" + env + "]"
	}
	return help
}

// spanOf is the sentence about a setting's range; empty if it has none.
func spanOf(tag func(string) string) string {
	if tag("min") == "" {
		return ""
	}
	return " From " + rangeOf(tag) + "."
}

// rangeOf writes the range of a setting, with the unit that its name tells: "1 to 3600 seconds".
func rangeOf(tag func(string) string) string {
	span := tag("min") + " to " + tag("max")
	for suffix, unit := range map[string]string{"_SECS": "seconds", "_MS": "milliseconds", "_HOURS": "hours"} {
		if strings.HasSuffix(tag("env"), suffix) {
			span += " " + unit
		}
	}
	return span
}
