import java.util.List;
import java.util.Map;

import org.opensearch.common.settings.Settings;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.transport.Netty4Plugin;

/**
 * One node of OpenSearch, from jars alone: no distribution, so no security and no scripts.
 * Argument: its folder, with its settings in config/.
 */
public class OpenSearchNode extends Node {
    private OpenSearchNode(Settings settings) {
        // The protected constructor is the only one that takes plugins without a folder of a distribution.
        super(
            InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), null, () -> "peer"),
            List.of(Netty4Plugin.class),
            true);
    }

    public static void main(String[] arguments) throws Exception {
        new OpenSearchNode(Settings.builder().put("path.home", arguments[0]).build()).start();
        Thread.currentThread().join();
    }
}
