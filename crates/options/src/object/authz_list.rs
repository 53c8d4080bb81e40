//! `--object authz-list`: options of a list of names of clients that are let in or refused, with QEMU's keys.

use crate::{
    Problem,
    fields::Fields,
    form::{AnyTextForm, ChoiceForm, ID_FORM, NonUtf8Path, ValueForm},
    key::ValueType,
    settings::{settings, words},
    tree::{Object, Value},
};

settings! {
    /// The keys of a list beside its rules.
    pub(crate) struct AuthzListKeys {
        /// its name, for tls-authz
        pub id: String = "id", ID_FORM, required("write id=NAME, such as id=clients0");
        /// what applies to a client that no rule matches (default deny)
        pub policy: AuthzPolicy = "policy", AuthzPolicy::FORM, default(AuthzPolicy::Deny);
    }
    beside {
        /// the type; its key may be omitted
        "qom-type", "authz-list", ValueType::Named("qom-type"), required;
        /// the rules, of which the first that matches applies: rules.0.KEY=VALUE,… with the keys below
        "rules", "LIST", ValueType::ListOf("QAuthZListRule");
    }
}

settings! {
    /// The keys of one rule.
    pub(crate) struct AuthzRuleKeys {
        /// the name in the client's certificate, as in rules.0.match=CN=host,,O=Example
        pub name: String = "match", AnyTextForm, required("write match=NAME, the name in a client's certificate");
        /// what applies to such a client
        pub policy: AuthzPolicy = "policy", AuthzPolicy::FORM, required("write policy=allow or policy=deny");
    }
    beside {
        /// match is the name, or a pattern with * for any characters and ? for one (default exact)
        "format", "exact|glob", ValueType::Named("QAuthZListFormat");
    }
}

words! {
    /// What applies to a client.
    pub enum AuthzPolicy {
        /// It is refused.
        Deny = "deny",
        /// It is let in.
        Allow = "allow",
    }
}

impl Default for AuthzPolicy {
    /// The policy before the options are read.
    fn default() -> Self {
        AuthzPolicy::Deny
    }
}

/// Words of `format`.
const FORMAT_FORM: ChoiceForm<bool> = ChoiceForm {
    words: &[("exact", false), ("glob", true)],
    unsupported: &[],
    placeholder: "exact|glob",
};

/// A list of names of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthzListOptions {
    /// `id`
    pub id: String,
    /// `policy`: what applies to a client that no rule matches.
    pub policy: AuthzPolicy,
    /// `rules`: the first that matches applies.
    pub rules: Vec<AuthzRule>,
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthzRule {
    /// `match`: a name, or a pattern.
    pub name: String,
    /// `format=glob`: it is a pattern.
    pub is_glob: bool,
    /// `policy`
    pub policy: AuthzPolicy,
}

/// Reads the tree of an `--object authz-list`.
pub(super) fn read_authz_list(object: Object) -> Result<AuthzListOptions, Problem> {
    let mut fields = Fields::with_known_keys(object, "", &[AuthzListKeys::KEYS], &[])?;
    fields.take_raw("qom-type");
    let AuthzListKeys { id, policy } = AuthzListKeys::read(&mut fields, None)?;
    let items = match fields.take_raw("rules") {
        None => Vec::new(),
        Some(Value::List(items)) => items,
        Some(other) => {
            let expected = "a list of rules, such as rules.0.match=CN=host,rules.0.policy=allow";
            return Err(fields.bad_value_error("rules", &other.excerpt(), expected));
        }
    };
    fields.debug_assert_all_taken();
    let items = items.into_iter().enumerate();
    let rules = items.map(|(index, item)| read_rule(item, &format!("rules.{index}")));
    let rules = rules.collect::<Result<_, _>>()?;
    Ok(AuthzListOptions { id, policy, rules })
}

fn read_rule(item: Value, path: &str) -> Result<AuthzRule, Problem> {
    let Value::Object(object) = item else {
        return Err(Problem::BadValue {
            key: path.to_owned(),
            value: item.excerpt(),
            expected: "a group, as in rules.0.match=CN=host".to_owned(),
        });
    };
    let prefix = format!("{path}.");
    let mut fields = Fields::with_known_keys(object, &prefix, &[AuthzRuleKeys::KEYS], &[])?;
    let AuthzRuleKeys { name, policy } = AuthzRuleKeys::read(&mut fields, None)?;
    let is_glob = fields.take_typed("format", &FORMAT_FORM)?.unwrap_or(false);
    fields.debug_assert_all_taken();
    Ok(AuthzRule {
        name,
        is_glob,
        policy,
    })
}

impl AuthzListOptions {
    /// These options as a tree, without the type.
    pub(crate) fn write_to(&self, to: &mut Object) -> Result<(), NonUtf8Path> {
        let keys = AuthzListKeys {
            id: self.id.clone(),
            policy: self.policy,
        };
        keys.write_to(to)?;
        let rules = self.rules.iter().map(|rule| {
            let mut object = Object::default();
            let keys = AuthzRuleKeys {
                name: rule.name.clone(),
                policy: rule.policy,
            };
            keys.write_to(&mut object)?;
            object.push_dotted_key("format", FORMAT_FORM.to_value(&rule.is_glob)?);
            Ok(Value::Object(object))
        });
        let rules: Vec<Value> = rules.collect::<Result<_, NonUtf8Path>>()?;
        if !rules.is_empty() {
            to.push_dotted_key("rules", Value::List(rules));
        }
        Ok(())
    }
}
